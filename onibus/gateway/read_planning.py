"""Planning a read of all partitions: wait for rows, then decide how far the read goes.

A read that is limited ends at about the same time in all partitions. A partition with few messages
that ran ahead would move the watermark of a query, and the rows of the others would come too late.
The search for that time takes one slice per probe, so no other command waits long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from onibus.api.log import LogPositions
from onibus.core.checks import check_whole
from onibus.core.commands import FindReach, FindSince, FindTime, Query
from onibus.core.errors import OnibusError
from onibus.directory.entity import Entity, Waiter
from onibus.directory.named_reader import MESSAGES
from onibus.directory.readers import (
    check_count,
    check_log,
    ends_of,
    find_incarnation,
    number_of,
    position_of,
    positions_of,
)
from onibus.gateway.read_limits import meeting, share
from onibus.gateway.receiving import try_or_wait
from onibus.shard.replies import Reply, answer, fail, is_unwanted
from onibus.shard.slices import in_slices

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker

T = TypeVar("T")
#: Rows of each partition that has any, by its index.
Counts = dict[int, int]
#: A search that can be interrupted after each probe.
Search = Generator[None, None, Counts]


def plan(
    broker: Broker,
    name: str,
    positions: Sequence[int],
    reply: Reply,
    *,
    log: str = MESSAGES,
    until: Sequence[int] | None = None,
    limit: int | None = None,
    limit_bytes: int | None = None,
    since_ms: int | None = None,
    wait_ms: int = 0,
    incarnation: int | None = None,
) -> Waiter | None:
    """Reply with the ends of the log and of a read from `positions`; wait for its first row.

    Return the waiter, if it waits.
    """
    entity = find_incarnation(broker, name, incarnation)
    check_log(entity, log)
    for numbers in (positions, until):
        if numbers is not None:
            check_count(entity, numbers)
    for what, most in (("limit", limit), ("limit_bytes", limit_bytes)):
        if most is not None:
            check_whole(what, most, 1)
    check_whole("wait_ms", wait_ms, 0)
    planned = _Read(broker, entity, log, positions, until, limit, limit_bytes, since_ms)
    if not wait_ms or planned.has_rows():
        planned.search(reply)
        return None

    def fetch(waiter: Waiter) -> bool:
        if not planned.has_rows():
            return False
        planned.search(waiter.reply)
        return True

    nothing, among = planned.without_limits(), entity.log_waiters
    return try_or_wait(broker, Waiter(entity, fetch, nothing, reply, among=among), wait_ms)


class _Read:
    """A read that is being planned."""

    def __init__(
        self,
        broker: Broker,
        entity: Entity,
        log: str,
        positions: Sequence[int],
        until: Sequence[int] | None,
        limit: int | None,
        limit_bytes: int | None,
        since_ms: int | None,
    ) -> None:
        self._broker = broker
        self._entity = entity
        self._log = log
        self._positions = positions
        self._until = until
        self._limit = limit
        self._limit_bytes = limit_bytes if log == MESSAGES else None
        self._since_ms = since_ms

    def has_rows(self) -> bool:
        """Return whether a partition ends elsewhere than at its start position."""
        find_incarnation(self._broker, self._entity.name, self._entity.incarnation)
        return any(
            number_of(self._log, one, ends_of(self._entity, self._log, one).visible_below)
            != position
            for one, position in zip(self._entity.partitions, self._positions, strict=True)
            if one.is_online
        )

    def search(self, reply: Reply) -> None:
        """Reply with the plan, now or after some slices."""
        whole = self.without_limits()
        if self._limit is None and self._limit_bytes is None:
            answer(reply, whole)
            return
        searching = self._limited(whole.until or ())

        def step() -> bool:
            try:
                if is_unwanted(reply):
                    return False
                find_incarnation(self._broker, self._entity.name, self._entity.incarnation)
                next(searching)
            except StopIteration as found:
                answer(reply, replace(whole, until=found.value))
                return False
            except OnibusError as error:
                fail(reply, error)
                return False
            return True

        in_slices(self._broker.call_soon, step)

    def without_limits(self) -> LogPositions:
        """Return the ends of the log and of the whole read; an offline partition is not read."""
        told = positions_of(self._broker, self._entity.name, self._log, self._since_ms)
        until = self._until or [latest or 0 for latest in told.latest]
        ends = [
            position if latest is None else max(position, min(latest, most))
            for position, latest, most in zip(self._positions, told.latest, until, strict=True)
        ]
        return replace(told, until=tuple(ends))

    def _limited(self, ends: tuple[int, ...]) -> Generator[None, None, tuple[int, ...]]:
        starts, waiting = {}, {}
        for index, (start, end) in enumerate(zip(self._positions, ends, strict=True)):
            if end > start:
                starts[index], last = (self._ordinal(index, number) for number in (start, end))
                waiting[index] = last - starts[index]
        limit = self._limit
        if limit is not None and sum(waiting.values()) > limit:
            most = limit
            waiting = yield from self._in_time(
                starts,
                waiting,
                lambda counts: sum(counts.values()) / most,
                lambda counts, same: share(same, most - sum(counts.values())),
            )
        if self._limit_bytes is not None:
            waiting = yield from self._limited_bytes(starts, waiting, self._limit_bytes)
        return tuple(
            self._number(index, starts[index] + waiting[index]) if index in waiting else end
            for index, end in enumerate(ends)
        )

    def _limited_bytes(self, starts: Counts, waiting: Counts, most: int) -> Search:
        """Return how many messages of each partition have about that many bytes together."""
        total = sum(waiting.values())
        room = {}
        for index, count in waiting.items():
            size = max(most * count // max(total, 1), 1)
            end = starts[index]
            if count:
                end = self._look(index, FindReach(starts[index], size))
            room[index] = min(count, end - starts[index])
        if room == waiting:
            return room
        found = yield from self._in_time(
            starts,
            waiting,
            lambda counts: max(counts[one] / max(room[one], 1) for one in counts),
            lambda counts, same: {
                one: min(same[one], max(room[one] - counts[one], 0)) for one in counts
            },
        )
        return found

    def _in_time(
        self,
        starts: Counts,
        waiting: Counts,
        fullness: Callable[[Counts], float],
        rest: Callable[[Counts, Counts], Counts],
    ) -> Search:
        """Return how many rows of each partition a read has that ends at one time in all.

        `rest` divides the room that is left over the rows of the next millisecond.
        """
        times = meeting(self._first_time(starts))
        try:
            moment = next(times)
            while True:
                yield
                moment = times.send(fullness(self._before(moment, starts, waiting)))
        except StopIteration as found:
            moment = found.value
        yield
        counts = self._before(moment, starts, waiting)
        following = self._before(moment + 1, starts, waiting)
        same = {one: max(following[one] - count, 0) for one, count in counts.items()}
        more = rest(counts, same)
        return {one: count + more[one] for one, count in counts.items()}

    def _before(self, moment: int, starts: Counts, waiting: Counts) -> Counts:
        """Return how many of the waiting rows are older than a time."""
        query = FindSince(moment, self._outcomes_of)
        return {
            index: min(max(self._look(index, query) - start, 0), waiting[index])
            for index, start in starts.items()
        }

    def _first_time(self, starts: Counts) -> int | None:
        """Return a time near the first row; None if it takes a search."""
        times = [
            self._look(index, FindTime(start, self._outcomes_of)) for index, start in starts.items()
        ]
        return min((one for one in times if one is not None), default=None)

    @property
    def _outcomes_of(self) -> int | None:
        return None if self._log == MESSAGES else self._entity.number

    def _look(self, index: int, query: Query[T]) -> T:
        partition = self._entity.partitions[index]
        return partition.store.look(partition, query)

    def _ordinal(self, index: int, number: int) -> int:
        return position_of(self._entity, self._log, self._entity.partitions[index], number)

    def _number(self, index: int, ordinal: int) -> int:
        return number_of(self._log, self._entity.partitions[index], ordinal)
