"""Bulk sends: a record batch is admitted on another thread, routed, and sent like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pyarrow as pa

from onibus.core import content_digest
from onibus.core.arrow_block import conform
from onibus.core.message import SentBatch
from onibus.core.path.admit_arrow import PreparedBatch, admit_arrow, one_batch, raw_values
from onibus.core.path.bulk import SentRows, encode_ahead, staged_apart
from onibus.core.staged import Part
from onibus.directory.entity import Entity
from onibus.directory.routing import any_partition, check_room, open_for_sends
from onibus.gateway.sending import check_strict, do_in_turn, put, take_in
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply, Reply, answer, fail
from onibus.shard.shard import SendRequest

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker

#: The index of a partition, or None if any will do; the rows that go there, and their positions in
#: the sent batch.
Division = tuple[int | None, PreparedBatch, list[int]]
#: The same with the partition that was chosen, and whether any other would do.
RoutedRows = tuple[ShardPartition, PreparedBatch, list[int], bool]


class Admission:
    """A batch on its way into an entity."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        given: pa.RecordBatch | pa.Table,
        to_stage: bool = False,
    ) -> None:
        self._broker = broker
        self._name = name
        self._given = given
        self._to_stage = to_stage
        entity = open_for_sends(broker, name)
        self._settings, self._partitions = entity.log_settings, len(entity.partitions)
        self._secret = broker.namespace.secret
        self._batch: PreparedBatch | None = None
        self._divisions: list[Division] = []
        #: digest of the given rows of a staged batch
        self.digest: int | None = None

    def admit(self) -> None:
        """Check all rows; this touches nothing of the broker, so any thread may do it."""
        if self._to_stage and self.digest is None:
            self._given = conform(one_batch(self._given))
        self._batch = admit_arrow(self._given, self._settings, self._secret)
        if self._to_stage and self.digest is None:
            self.digest = content_digest.of_columns(self._given)
        self._divisions = divide(self._batch, self._partitions)
        for _, rows, _ in self._divisions:
            encode_ahead(rows, self._to_stage)
            if self._to_stage:
                rows.encoded = rows.encode(apart=staged_apart(rows))

    def route(self) -> list[RoutedRows]:
        """Return the partitions that take the rows now; keyless ones share one (P4)."""
        entity = open_for_sends(self._broker, self._name)
        if self._batch is None or entity.log_settings is not self._settings:
            # An operator has changed the entity since.
            self._settings, self._partitions = entity.log_settings, len(entity.partitions)
            self.admit()
        assert self._batch is not None
        parts: dict[ShardPartition, RoutedRows] = {}
        # Rows that any partition may take come last: they may join rows that must go to one.
        for index, rows, positions in sorted(self._divisions, key=lambda one: one[0] is None):
            partition = _partition(entity, index, rows.size)
            if partition in parts:
                positions = sorted(positions + parts[partition][2])
                rows = self._batch.take(positions)
            parts[partition] = (
                partition,
                rows,
                positions,
                index is None and partition not in parts,
            )
        return list(parts.values())

    def send(self, reply: Reply) -> None:
        """Store the admitted rows; the reply gets a `SentBatch` when all of them are durable."""
        parts = self.route()
        if self._settings.strict_batches:
            assert self._batch is not None
            check_strict(self._settings, raw_values(self._batch.keys))
        _send(self._broker, parts, reply)


def _send(broker: Broker, parts: list[RoutedRows], reply: Reply) -> None:
    count = sum(len(rows) for _, rows, _, _ in parts)

    def collect(kept: KeptReply) -> None:
        if kept.error is not None:
            fail(reply, kept.error)
            return
        numbers = np.zeros(count, np.int64)
        dropped = np.zeros(count, bool)
        for partition, _, positions, _ in parts:
            rows: SentRows = kept.value[partition]
            numbers[positions], dropped[positions] = rows.numbers, rows.dropped
        answer(reply, _sent(numbers, dropped))

    if len(parts) == 1:
        partition, rows, _, keyless = parts[0]
        partition.store.check_disk(rows.size, routing=True)
        one = KeptReply(lambda kept: collect(_of_one(partition, kept)), reply)
        put(broker, SendRequest(partition, rows, one, keyless, rows.size))
        return
    work = {partition: Part(rows) for partition, rows, _, _ in parts}

    def do() -> None:
        take_in(work)
        now = broker.clock.now()
        for partition in work:
            broker.advance(partition, now)
        broker.works.do(work, now, KeptReply(collect))

    do_in_turn(broker, work, reply, do)


def _of_one(partition: ShardPartition, kept: KeptReply) -> KeptReply:
    """Return the result of one partition as that of a multi-partition operation."""
    whole = KeptReply()
    whole.error, whole.value = kept.error, {partition: kept.value}
    return whole


def _partition(entity: Entity, index: int | None, size: int) -> ShardPartition:
    """Return a partition that has room."""
    if index is None:
        return any_partition(entity, size)
    check_room(entity.partitions[index], size)
    return entity.partitions[index]


def _sent(numbers: np.ndarray, dropped: np.ndarray) -> SentBatch:
    duplicates = int(np.count_nonzero(dropped))
    return SentBatch(
        accepted=len(numbers) - duplicates,
        duplicates=duplicates,
        sequence_number=pa.array(numbers),
        duplicate_of=pa.array(numbers, mask=~dropped),
    )


def divide(batch: PreparedBatch, count: int) -> list[Division]:
    """Return a batch's rows by their partitions; keyless ones share one (P4)."""
    if count == 1:
        return [(0, batch, list(range(len(batch))))]
    found: dict[int | None, list[int]] = {}
    for position, key in enumerate(raw_values(batch.keys)):
        index = None if key is None else crc32(key) % count
        found.setdefault(index, []).append(position)
    if len(found) == 1:
        # As Spark sends them, which has shuffled them.
        return [(next(iter(found)), batch, list(range(len(batch))))]
    return [(index, batch.take(positions), positions) for index, positions in found.items()]
