"""Bulk sends: a batch in Arrow is admitted beside the loop, routed, and sent like any other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pyarrow as pa

from onibus.broker.entity import Entity, Seat
from onibus.broker.message_store import SendRequest
from onibus.broker.replies import Outcome, Reply, answer, fail
from onibus.broker.routing import any_seat, check_room
from onibus.broker.sending import open_for_sends, put
from onibus.core.errors import Refused, Unknown
from onibus.core.message import SentBatch
from onibus.core.path.admit_arrow import PreparedBatch, admit_arrow, raw_values
from onibus.core.path.bulk import SentRows

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

#: A partition, the rows that go to it and their positions in what was sent, and whether any other
#: partition would do.
Part = tuple[Seat, PreparedBatch, list[int], bool]


class Admission:
    """A batch on its way into an entity."""

    def __init__(self, broker: Broker, name: str, given: pa.RecordBatch | pa.Table) -> None:
        self._broker = broker
        self._name = name
        self._given = given
        self._settings = open_for_sends(broker, name).log_settings
        self._batch: PreparedBatch | None = None

    def admit(self) -> None:
        """Look at all rows; touches nothing of the broker, so any thread may do it."""
        self._batch = admit_arrow(self._given, self._settings, self._broker.namespace.secret)

    def send(self, reply: Reply) -> None:
        """Store what was admitted; the reply gets a `SentBatch` when all of it is durable."""
        entity = open_for_sends(self._broker, self._name)
        if self._batch is None or entity.log_settings is not self._settings:
            # Somebody has changed the entity meanwhile.
            self._settings = entity.log_settings
            self.admit()
        assert self._batch is not None
        _send(self._broker, entity, self._batch, reply)


def _send(broker: Broker, entity: Entity, batch: PreparedBatch, reply: Reply) -> None:
    parts = route(entity, batch)
    for seat, _, _, _ in parts:
        seat.store.check_disk()
    numbers = np.zeros(len(batch), np.int64)
    dropped = np.zeros(len(batch), bool)
    errors: list[BaseException] = []
    left = len(parts)

    def collect(positions: list[int], outcome: Outcome) -> None:
        nonlocal left
        left -= 1
        if outcome.error is not None:
            errors.append(outcome.error)
        else:
            rows: SentRows = outcome.value
            numbers[positions], dropped[positions] = rows.numbers, rows.dropped
        if left:
            return
        if not errors:
            answer(reply, _sent(numbers, dropped))
        elif len(errors) == len(parts) and all(isinstance(error, Refused) for error in errors):
            fail(reply, errors[0])
        else:
            fail(reply, Unknown(f"part of the batch may be stored: {errors[0]}"))

    for seat, rows, positions, keyless in parts:
        outcome = Outcome(partial(collect, positions))
        put(broker, SendRequest(seat, rows, outcome, keyless, rows.size))


def _sent(numbers: np.ndarray, dropped: np.ndarray) -> SentBatch:
    duplicates = int(np.count_nonzero(dropped))
    return SentBatch(
        accepted=len(numbers) - duplicates,
        duplicates=duplicates,
        sequence_number=pa.array(numbers),
        duplicate_of=pa.array(numbers, mask=~dropped),
    )


def route(entity: Entity, batch: PreparedBatch) -> list[Part]:
    """Return the partitions of a batch's rows; keyless ones share one (P4)."""
    everything = list(range(len(batch)))
    if len(entity.seats) == 1:
        check_room(entity.seats[0], batch.size)
        return [(entity.seats[0], batch, everything, False)]
    keyed: dict[int, list[int]] = {}
    keyless: list[int] = []
    count = len(entity.seats)
    for position, key in enumerate(raw_values(batch.keys)):
        if key is None:
            keyless.append(position)
        else:
            keyed.setdefault(crc32(key) % count, []).append(position)
    parts: list[Part] = []
    for index, positions in keyed.items():
        rows = batch.take(positions)
        check_room(entity.seats[index], rows.size)
        parts.append((entity.seats[index], rows, positions, False))
    if keyless:
        rows = batch.take(keyless)
        parts.append((any_seat(entity, rows.size), rows, keyless, True))
    return parts
