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
from onibus.core.path.bulk import SentRows, encode_ahead

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

#: The index of a partition, or None where any will do; the rows that go there, and their positions
#: in what was sent.
Part = tuple[int | None, PreparedBatch, list[int]]


class Admission:
    """A batch on its way into an entity."""

    def __init__(self, broker: Broker, name: str, given: pa.RecordBatch | pa.Table) -> None:
        self._broker = broker
        self._name = name
        self._given = given
        entity = open_for_sends(broker, name)
        self._settings, self._partitions = entity.log_settings, len(entity.seats)
        self._secret = broker.namespace.secret
        self._parts: list[Part] = []

    def admit(self) -> None:
        """Look at all rows; touches nothing of the broker, so any thread may do it."""
        batch = admit_arrow(self._given, self._settings, self._secret)
        self._parts = divide(batch, self._partitions)
        for _, rows, _ in self._parts:
            encode_ahead(rows)

    def send(self, reply: Reply) -> None:
        """Store what was admitted; the reply gets a `SentBatch` when all of it is durable."""
        entity = open_for_sends(self._broker, self._name)
        if entity.log_settings is not self._settings:
            # Somebody has changed the entity meanwhile.
            self._settings, self._partitions = entity.log_settings, len(entity.seats)
            self.admit()
        _send(self._broker, entity, self._parts, reply)


def _send(broker: Broker, entity: Entity, parts: list[Part], reply: Reply) -> None:
    seats = [_seat(entity, index, rows.size) for index, rows, _ in parts]
    for seat in seats:
        seat.store.check_disk()
    count = sum(len(rows) for _, rows, _ in parts)
    numbers = np.zeros(count, np.int64)
    dropped = np.zeros(count, bool)
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

    for seat, (index, rows, positions) in zip(seats, parts, strict=True):
        outcome = Outcome(partial(collect, positions))
        put(broker, SendRequest(seat, rows, outcome, index is None, rows.size))


def _seat(entity: Entity, index: int | None, size: int) -> Seat:
    """Return a partition that has room."""
    if index is None:
        return any_seat(entity, size)
    check_room(entity.seats[index], size)
    return entity.seats[index]


def _sent(numbers: np.ndarray, dropped: np.ndarray) -> SentBatch:
    duplicates = int(np.count_nonzero(dropped))
    return SentBatch(
        accepted=len(numbers) - duplicates,
        duplicates=duplicates,
        sequence_number=pa.array(numbers),
        duplicate_of=pa.array(numbers, mask=~dropped),
    )


def divide(batch: PreparedBatch, count: int) -> list[Part]:
    """Return a batch's rows by their partitions; keyless ones share one (P4)."""
    if count == 1:
        return [(0, batch, list(range(len(batch))))]
    found: dict[int | None, list[int]] = {}
    for position, key in enumerate(raw_values(batch.keys)):
        index = None if key is None else crc32(key) % count
        found.setdefault(index, []).append(position)
    return [(index, batch.take(positions), positions) for index, positions in found.items()]
