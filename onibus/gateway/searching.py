"""Searching: a bounded look at messages, with the place from which the next one continues.

A peek looks until it finds something. A search looks at a limited number of messages and returns
where it stopped, so its caller can show progress and stop at any time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from onibus.api.searching import LOOKS_MAX
from onibus.core.commands import (
    CountPurgeable,
    CountReasons,
    DescribeSessions,
    FindEnds,
    ListSessionIds,
    Tail,
    WarmSessions,
)
from onibus.core.errors import EntityNotFound, InvalidArgument
from onibus.core.inspection import Filter, SessionInfo, check_filter
from onibus.core.limits import BATCH_COUNT_MAX, PEEK_BYTES_MAX
from onibus.core.message import ReceivedMessage
from onibus.core.numbering import partition_index
from onibus.gateway.settling import peek_partition

if TYPE_CHECKING:
    from onibus.directory.entity import Entity
    from onibus.gateway.broker import Broker
    from onibus.shard.partition import ShardPartition

#: Messages looked at before other clients have their turn.
A_SLICE = 200
#: Messages of a partition that a look at the tail returns at most; earlier ones are skipped, and so
#: are those beyond the bytes of a peek.
TAIL_MAX = 50
#: Reasons that are counted one by one; further ones are counted together.
REASONS_MAX = 2_000


class Found(msgspec.Struct):
    """What a search found, and where the next one starts."""

    messages: list[ReceivedMessage]
    #: the sequence number at which the next search starts; None at the end
    next: int | None
    #: messages looked at, about
    looked: int


def search(
    broker: Broker, name: str, start: int, limit: int, looks: int, wanted: Filter, dead: bool
) -> Iterator[Found | None]:
    """Look through partitions in their order; yield None after each slice, then what was found."""
    entity = broker.find(name)
    if not 0 < limit <= BATCH_COUNT_MAX or not 0 < looks <= LOOKS_MAX or start < 0:
        raise InvalidArgument(
            f"a search has a limit of 1 to {BATCH_COUNT_MAX}, 1 to {LOOKS_MAX} looks and a start"
        )
    check_filter(wanted, dead)
    looked = 0
    index = partition_index(start, entity.partitioned)
    for partition in entity.partitions[index:]:
        if not partition.is_online and len(entity.partitions) > 1:
            continue
        left = looks - looked
        number = start if partition.index == index else 0
        found: list[ReceivedMessage] = []
        ordinal, is_full = 0, False
        for peeked in peek_partition(
            broker, entity, partition, number, limit, wanted, dead, partial(_a_slice, left)
        ):
            found += peeked.messages
            looked += peeked.looked
            ordinal, is_full = peeked.next, peeked.is_full
            yield None
        if found or ordinal:
            yield Found(found, _next(entity, partition, found, is_full, ordinal), looked)
            return
    yield Found([], None, looked)


def _a_slice(left: int, looked: int) -> int:
    """Return how many messages the next slice looks at."""
    return max(min(A_SLICE, left - looked), 0)


def _next(
    entity: Entity,
    partition: ShardPartition,
    found: list[ReceivedMessage],
    is_full: bool,
    ordinal: int,
) -> int | None:
    """Return the number at which the next search starts."""
    if ordinal:
        return partition.numbering.number(ordinal)
    if is_full:
        # Above the highest number of a partition is the first one of the next.
        return found[-1].sequence_number + 1
    following = partition.index + 1
    return following << 48 if following < len(entity.partitions) else None


class Tailing:
    """Messages that arrive from now on, without a change to them."""

    def __init__(self, broker: Broker, name: str, wanted: Filter) -> None:
        self._broker = broker
        self._entity = broker.find(name)
        self._entity.outlet_settings()
        check_filter(wanted, dead=False)
        self._wanted = wanted
        #: where each partition's log ended at the last look; offline ones follow later
        self._ends = {
            partition: partition.store.look(partition, FindEnds()).visible_below
            for partition in self._entity.online_partitions()
        }

    def look(self) -> list[ReceivedMessage]:
        """Return some of the messages that arrived since the last look."""
        found: list[ReceivedMessage] = []
        left = PEEK_BYTES_MAX
        for partition in self._entity.partitions:
            if partition.deleted:
                raise EntityNotFound(f"{self._entity.name} was deleted")
            if partition.is_online:
                start = self._ends.get(partition, 0)
                command = Tail(self._entity.number, self._wanted, start, TAIL_MAX, left)
                tailed = self._broker.use(self._entity, partition, command)
                self._ends[partition] = tailed.next
                found += tailed.messages
                left -= tailed.size
        return found


def count_purgeable(broker: Broker, name: str, wanted: Filter) -> Iterator[int | None]:
    """Count what a purge would delete; yield None after each slice, then the count."""
    entity = broker.find(name)
    count = 0
    for partition in entity.partitions:
        start = 1
        while start:
            counted = broker.use(
                entity, partition, CountPurgeable(entity.number, wanted, start, A_SLICE)
            )
            count, start = count + counted.count, counted.next
            yield None
    yield count


class Reasons(msgspec.Struct):
    """Dead-lettered messages by reason."""

    counts: dict[str, int]
    #: messages whose reasons are not counted one by one
    others: int
    #: whether every dead-lettered message was counted
    complete: bool


def dead_letter_reasons(broker: Broker, name: str) -> Iterator[Reasons | None]:
    """Count dead-lettered messages by reason; yield None after each slice, then the counts."""
    entity = broker.find(name)
    counts: dict[str | None, int] = {}
    looked = 0
    for partition in entity.partitions:
        start = 1
        while start and partition.is_online and looked < LOOKS_MAX:
            counted = broker.use(entity, partition, CountReasons(entity.number, start, A_SLICE))
            start = counted.next
            for reason, count in counted.counts.items():
                key = None if reason not in counts and len(counts) > REASONS_MAX else reason
                counts[key] = counts.get(key, 0) + count
            looked += A_SLICE
            yield None
        if start and partition.is_online:
            yield _reasons(counts, complete=False)
            return
    online = all(partition.is_online for partition in entity.partitions)
    yield _reasons(counts, complete=online)


def _reasons(counts: dict[str | None, int], complete: bool) -> Reasons:
    others = counts.pop(None, 0)
    return Reasons({reason or "": count for reason, count in counts.items()}, others, complete)


class SomeSessions(msgspec.Struct):
    """The sessions whose oldest message waits longest, and how many match."""

    sessions: list[SessionInfo]
    count: int


def list_sessions(
    broker: Broker, name: str, word: str, limit: int | None
) -> Iterator[SomeSessions | None]:
    """Find sessions whose id has a word; yield None after each slice, then what was found.

    With a limit, those that wait longest come first; without one, all are in no order.
    """
    entity = broker.find(name)
    found = SomeSessions([], 0)
    for partition in entity.online_partitions():
        while broker.use(entity, partition, WarmSessions(entity.number, A_SLICE)):
            yield None
        ids = broker.use(entity, partition, ListSessionIds(entity.number))
        for start in range(0, len(ids), A_SLICE):
            command = DescribeSessions(entity.number, ids[start : start + A_SLICE])
            infos = broker.use(entity, partition, command)
            matching = [info for info in infos if word in info.session_id.lower()]
            found.count += len(matching)
            found.sessions += matching
            if limit is not None:
                found.sessions = heapq.nsmallest(limit, found.sessions, _waits_longest)
            yield None
    yield found


def _waits_longest(info: SessionInfo) -> tuple[float, str]:
    oldest = info.oldest_enqueued_time_ms
    return (math.inf if oldest is None else oldest), info.session_id
