"""Bulk sends: a batch in Arrow is admitted beside the loop, routed, and sent like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pyarrow as pa

from onibus.broker.entity import Entity, Seat
from onibus.broker.message_store import SendRequest
from onibus.broker.replies import Outcome, Reply, answer, fail
from onibus.broker.routing import any_seat, check_room
from onibus.broker.sending import check_strict, open_for_sends, put
from onibus.core.message import SentBatch
from onibus.core.path.admit_arrow import PreparedBatch, admit_arrow, raw_values
from onibus.core.path.bulk import SentRows
from onibus.core.staged import Part as StagedPart

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
        batch = self.admitted()
        _send(self._broker, open_for_sends(self._broker, self._name), batch, reply)

    def admitted(self) -> PreparedBatch:
        """Return the batch as the entity takes it now."""
        entity = open_for_sends(self._broker, self._name)
        if self._batch is None or entity.log_settings is not self._settings:
            # Somebody has changed the entity meanwhile.
            self._settings = entity.log_settings
            self.admit()
        assert self._batch is not None
        return self._batch


def _send(broker: Broker, entity: Entity, batch: PreparedBatch, reply: Reply) -> None:
    if entity.log_settings.strict_batches:
        check_strict(entity.log_settings, raw_values(batch.keys))
    parts = route(entity, batch)

    def collect(outcome: Outcome) -> None:
        if outcome.error is not None:
            fail(reply, outcome.error)
            return
        numbers = np.zeros(len(batch), np.int64)
        dropped = np.zeros(len(batch), bool)
        for seat, _, positions, _ in parts:
            rows: SentRows = outcome.value[seat]
            numbers[positions], dropped[positions] = rows.numbers, rows.dropped
        answer(reply, _sent(numbers, dropped))

    if len(parts) == 1:
        seat, rows, _, keyless = parts[0]
        seat.store.check_disk()
        one = Outcome(lambda outcome: collect(_of_one(seat, outcome)))
        put(broker, SendRequest(seat, rows, one, keyless, rows.size))
        return
    now = broker.clock.now()
    for seat, _, _, _ in parts:
        broker.advance(seat, now)
    work = {seat: StagedPart(rows) for seat, rows, _, _ in parts}
    broker.works.do(work, now, Outcome(collect))


def _of_one(seat: Seat, outcome: Outcome) -> Outcome:
    """Return the answer of one partition as that of a work."""
    whole = Outcome()
    whole.error, whole.value = outcome.error, {seat: outcome.value}
    return whole


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
    if keyless:
        rows = batch.take(keyless)
        seat = any_seat(entity, rows.size)
        if seat.index in keyed:
            # Their turn has come to a partition that gets rows by their keys as well.
            keyed[seat.index] = sorted(keyed[seat.index] + keyless)
        else:
            parts.append((seat, rows, keyless, True))
    for index, positions in keyed.items():
        rows = batch.take(positions)
        check_room(entity.seats[index], rows.size)
        parts.append((entity.seats[index], rows, positions, False))
    return parts
