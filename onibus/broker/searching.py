"""Searching: a bounded look at messages, with the place from which the next one continues.

A peek looks until it finds something. A search looks at a limited number of messages and returns
where it stopped, so its caller can show progress and stop at any time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from onibus.api.searching import LOOKS_MAX
from onibus.broker.settling import first_ordinal
from onibus.core.errors import EntityNotFound, InvalidArgument
from onibus.core.inspection import Filter, SessionInfo
from onibus.core.lifecycle import HELD, State
from onibus.core.limits import BATCH_COUNT_MAX, PEEK_BYTES_MAX
from onibus.core.message import ReceivedMessage
from onibus.core.numbering import partition_index
from onibus.core.path.peek import SLICE_BYTES, Page, live_ordinals, states_of
from onibus.core.path.session import describe

if TYPE_CHECKING:
    from onibus.broker.broker import Broker
    from onibus.broker.entity import Entity, Seat
    from onibus.core.sessions import Session
    from onibus.core.subscription import Subscription

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
    looked = 0
    index = partition_index(start, entity.partitioned)
    for seat in entity.seats[index:]:
        if seat.partition is None and len(entity.seats) > 1:
            continue
        page = Page(limit, wanted, dead)
        number = start if seat.index == index else 0
        ordinal = broker.look(entity, seat, first_ordinal, number)
        while ordinal and looked + page.looked < looks:
            slice_looks = min(A_SLICE, looks - looked - page.looked)
            ordinal = broker.look(entity, seat, page.fill, ordinal, slice_looks)
            yield None
        looked += page.looked
        if page.messages or ordinal:
            yield Found(page.messages, _next(entity, seat, page, ordinal), looked)
            return
    yield Found([], None, looked)


def _next(entity: Entity, seat: Seat, page: Page, ordinal: int) -> int | None:
    """Return the number at which the next search starts."""
    if ordinal:
        return seat.online().numbering.number(ordinal)
    if page.is_full:
        # Above the highest number of a partition is the first one of the next.
        return page.messages[-1].sequence_number + 1
    following = seat.index + 1
    return following << 48 if following < len(entity.seats) else None


class Tail:
    """Messages that arrive from now on, without a change to them."""

    def __init__(self, broker: Broker, name: str, wanted: Filter) -> None:
        self._broker = broker
        self._entity = broker.find(name)
        self._entity.outlet_settings()
        self._states = states_of(wanted, dead=False)
        self._wanted = wanted
        #: bytes of bodies in the current look
        self._size = 0
        #: where each partition's log ended at the last look; offline ones follow later
        self._ends = {
            seat: seat.partition.log.visible_below
            for seat in self._entity.seats
            if seat.partition is not None
        }

    def look(self) -> list[ReceivedMessage]:
        """Return some of the messages that arrived since the last look."""
        found: list[ReceivedMessage] = []
        self._size = 0
        for seat in self._entity.seats:
            if seat.deleted:
                raise EntityNotFound(f"{self._entity.name} was deleted")
            if seat.partition is not None:
                self._ends[seat] = self._broker.look(
                    self._entity, seat, self._take, self._ends.get(seat, 0), found
                )
        return found

    def _take(self, subscription: Subscription, start: int, found: list[ReceivedMessage]) -> int:
        """Add what arrived; return where the next look starts."""
        below = subscription.log.visible_below
        start = max(min(start, below) if start else below, below - TAIL_MAX)
        for ordinal in live_ordinals(subscription, start, self._states):
            message = subscription.view(ordinal)
            if self._size > PEEK_BYTES_MAX:
                break
            self._size += len(message.body)
            if self._wanted.matches(message):
                found.append(message)
        return below


def count_purgeable(broker: Broker, name: str, wanted: Filter) -> Iterator[int | None]:
    """Count what a purge would delete; yield None after each slice, then the count."""
    entity = broker.find(name)
    states = states_of(wanted, dead=False) - HELD
    count = 0
    for seat in entity.seats:
        start = 1
        while start:
            found, start = broker.look(entity, seat, _count_matching, states, wanted, start)
            count += found
            yield None
    yield count


def _count_matching(
    subscription: Subscription, states: frozenset[State], wanted: Filter, start: int
) -> tuple[int, int]:
    """Count a slice of messages that match; return the count and where to continue."""
    count = size = 0
    for looked, ordinal in enumerate(live_ordinals(subscription, start, states)):
        if looked == A_SLICE or size > SLICE_BYTES:
            return count, ordinal
        message = subscription.view(ordinal)
        size += len(message.body)
        count += wanted.matches(message)
    return count, 0


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
    states = states_of(Filter(), dead=True)
    counts: dict[str | None, int] = {}
    looked = 0
    for seat in entity.seats:
        start = 1
        while start and seat.partition is not None and looked < LOOKS_MAX:
            start = broker.look(entity, seat, _count, states, start, counts)
            looked += A_SLICE
            yield None
        if start and seat.partition is not None:
            yield _reasons(counts, complete=False)
            return
    online = all(seat.partition is not None for seat in entity.seats)
    yield _reasons(counts, complete=online)


def _reasons(counts: dict[str | None, int], complete: bool) -> Reasons:
    others = counts.pop(None, 0)
    return Reasons({reason or "": count for reason, count in counts.items()}, others, complete)


def _count(
    subscription: Subscription, states: frozenset[State], start: int, counts: dict[str | None, int]
) -> int:
    """Count a slice of dead-lettered messages; return where to continue, 0 at the end."""
    for looked, ordinal in enumerate(live_ordinals(subscription, start, states)):
        if looked == A_SLICE:
            return ordinal
        reason = subscription.view(ordinal).dead_letter_reason or ""
        key = None if reason not in counts and len(counts) > REASONS_MAX else reason
        counts[key] = counts.get(key, 0) + 1
    return 0


class SomeSessions(msgspec.Struct):
    """The sessions whose oldest message waits longest, and how many match."""

    sessions: list[SessionInfo]
    count: int


def list_sessions(
    broker: Broker, name: str, word: str, limit: int
) -> Iterator[SomeSessions | None]:
    """Find sessions whose id has a word; yield None after each slice, then what was found."""
    entity = broker.find(name)
    found = SomeSessions([], 0)
    for seat in entity.seats:
        if seat.partition is None:
            continue
        while broker.look(entity, seat, _warm_some):
            yield None
        sessions = broker.look(entity, seat, lambda part: part.sessions.hot())
        for start in range(0, len(sessions), A_SLICE):
            some = sessions[start : start + A_SLICE]
            infos = broker.look(entity, seat, _described, some)
            matching = [info for info in infos if word in info.session_id.lower()]
            found.count += len(matching)
            found.sessions = heapq.nsmallest(limit, [*found.sessions, *matching], _waits_longest)
            yield None
    yield found


def _warm_some(part: Subscription) -> bool:
    return part.sessions.warm_some(part.session_name, A_SLICE)


def _described(part: Subscription, sessions: list[Session]) -> list[SessionInfo]:
    return list(describe(part, sessions))


def _waits_longest(info: SessionInfo) -> tuple[float, str]:
    oldest = info.oldest_enqueued_time_ms
    return (math.inf if oldest is None else oldest), info.session_id
