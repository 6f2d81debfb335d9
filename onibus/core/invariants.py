"""The invariants of a partition between any two commands, as numbered statements.

The simulator checks them as it goes; a tool may do so on any partition. They read every block, so a
server does not run them. `violations` returns the statements that do not hold.

1. Every live ordinal is in one place: ready, in its session, or marked and not simply active.
2. The count of each state is the number of marks in it.
3. A mark has a hold exactly where its state is a locked one, and its hold knows its ordinal.
4. A hold has ordinals, and each of them is marked with that hold.
5. Gone runs rise, and neither touch nor overlap.
6. Blocks rise and do not overlap; their rows that are not gone are exactly the live ordinals.
7. Blocks know how many of their rows are live, and in a topic for how many subscriptions; the log
   knows the sum of their bytes.
8. The dead-letter queue lists exactly the marks of dead states, as ready those without a lock.
9. Whatever has a time has a timer: holds, session locks, attempts, due messages.
10. A block's timer fires no later than the expiry of its first row that can expire.
11. A free session with a message to deliver is offered.
12. From `complete_from` on no ordinal is without its row.
13. `aside` lists exactly the marks of deferred and scheduled messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from onibus.core.block import NEVER
from onibus.core.lifecycle import ASIDE, DEAD, HELD, TIMED, State
from onibus.core.partition import Partition
from onibus.core.subscription import Subscription

#: Messages in these states have a mark, and are ready nevertheless.
_READY = (State.ACTIVE,)


def violations(partition: Partition, sessions: bool = True) -> list[str]:
    """Return the statements that do not hold, in words.

    `sessions`: look into sessions too, which brings those of before a restart into memory.
    """
    found = list(_blocks(partition))
    for subscription in partition.subscriptions.values():
        checks = [_marks, _holds, _gone, _dead, _set_aside, _timers, _expiry]
        if not subscription.settings.requires_session:
            checks.append(_places)
        elif sessions:
            checks += [_session_places, _offers]
        found += [words for check in checks for words in check(subscription)]
    return found


def _live(subscription: Subscription) -> set[int]:
    live: set[int] = set()
    start = 1
    for first, last in subscription.gone.runs():
        live.update(range(start, first))
        start = last + 1
    live.update(range(start, subscription.log.next_ordinal))
    return live


def _in_states(subscription: Subscription, states: Collection[State]) -> set[int]:
    """Return the marked ordinals in these states, without reading a mark from the store."""
    marks = subscription.marks
    return {ordinal for ordinal in marks if marks.state(ordinal) in states}


def _aside(subscription: Subscription) -> set[int]:
    return _in_states(subscription, set(State) - set(_READY))


def _places(subscription: Subscription) -> Iterator[str]:
    ready = list(subscription.ready.ordinals())
    yield from _compare_places(subscription, ready, _aside(subscription))


def _session_places(subscription: Subscription) -> Iterator[str]:
    ready: list[int] = []
    for session in subscription.sessions.all(subscription.session_name):
        ready += session.ready
        if list(session.ready) != sorted(session.ready):
            yield f"1: session {session.id!r} is out of order"
        for ordinal in session.waiting:
            if subscription.state(ordinal) is not State.DELAYED:
                yield f"1: {ordinal} waits in session {session.id!r} and is not delayed"
        for ordinal in session.in_flight + session.blocking:
            if subscription.state(ordinal) not in HELD:
                yield f"1: {ordinal} is in flight in {session.id!r} and not held"
    yield from _compare_places(subscription, ready, _aside(subscription))


def _compare_places(subscription: Subscription, ready: list[int], aside: set[int]) -> Iterator[str]:
    if len(set(ready)) != len(ready) or aside & set(ready):
        yield f"1: in two places: {sorted(aside & set(ready)) or ready}"
    live = _live(subscription)
    if aside | set(ready) != live:
        yield f"1: live and in no place, or the reverse: {sorted((aside | set(ready)) ^ live)}"


def _marks(subscription: Subscription) -> Iterator[str]:
    counts = [0] * len(State)
    for ordinal in subscription.marks:
        counts[subscription.state(ordinal)] += 1
    for ordinal, mark in subscription.marks.hot.items():
        if (mark.state in HELD) != (mark.hold is not None):
            yield f"3: {ordinal} is {mark.state!r} with hold {mark.hold}"
        elif mark.hold is not None and ordinal not in mark.hold.ordinals:
            yield f"3: the hold of {ordinal} does not know it"
    if counts != subscription.counts:
        yield f"2: counted {counts}, kept {subscription.counts}"


def _holds(subscription: Subscription) -> Iterator[str]:
    for epoch, hold in subscription.holds.items():
        if not hold.ordinals or hold.epoch != epoch:
            yield f"4: hold {epoch} holds nothing, or is another's"
        if bool(hold.owner) != (epoch in subscription.owned):
            yield f"4: hold {epoch} of {hold.owner!r} is in the wrong list"
        for ordinal in hold.ordinals:
            mark = subscription.marks.hot.get(ordinal)
            if mark is None or mark.hold is not hold:
                yield f"4: hold {epoch} holds {ordinal}, which does not know"


def _gone(subscription: Subscription) -> Iterator[str]:
    previous = -1
    count = 0
    for first, last in subscription.gone.runs():
        if first <= previous + 1 or last < first:
            yield f"5: run {first}–{last} after {previous}"
        previous = last
        count += last - first + 1
    if count != subscription.gone.count:
        yield f"5: {count} are gone, {subscription.gone.count} were counted"


def _blocks(partition: Partition) -> Iterator[str]:
    log = partition.log
    live: Counter[int] = Counter()
    for subscription in partition.subscriptions.values():
        live.update(_live(subscription))
    found: set[int] = set()
    previous = size = complete = 0
    for place in log.places:
        ordinals = log.read(place).index["ordinal"].tolist()
        if ordinals[0] <= previous or (ordinals[0], ordinals[-1]) != (place.first, place.last):
            yield f"6: block {place.block} has {ordinals[0]}–{ordinals[-1]} after {previous}"
        previous = ordinals[-1]
        complete += sum(ordinal >= log.complete_from for ordinal in ordinals)
        here = live.keys() & set(ordinals)
        found |= here
        size += place.live_bytes
        kept = here or place.last >= log.floor
        if place.live != len(here) or not kept or place.rows != len(ordinals):
            yield f"7: block {place.block} counts {place.live} live rows and has {len(here)}"
        if place.fans is not None and place.fans.counts.tolist() != [live[o] for o in ordinals]:
            yield f"7: block {place.block} has {place.fans.counts} takers"
    if complete != log.next_ordinal - log.complete_from:
        yield f"12: {complete} rows from {log.complete_from} on, the next is {log.next_ordinal}"
    if found != live.keys():
        yield f"6: live and in no block: {sorted(live.keys() - found)}"
    if size != log.live_bytes:
        yield f"7: {size} bytes live, {log.live_bytes} were counted"
    if log.total_bytes != sum(place.size for place in log.places):
        yield f"7: {log.total_bytes} bytes were counted in all blocks"


def _dead(subscription: Subscription) -> Iterator[str]:
    dead = _in_states(subscription, DEAD)
    ready = _in_states(subscription, {State.DEAD_LETTERED})
    if set(subscription.dead.ordinals()) != dead:
        yield f"8: dead {sorted(dead)}, listed {list(subscription.dead.ordinals())}"
    if set(subscription.dead_ready.ordinals()) != ready:
        yield f"8: ready {sorted(ready)}, listed {list(subscription.dead_ready.ordinals())}"


def _set_aside(subscription: Subscription) -> Iterator[str]:
    aside = _in_states(subscription, ASIDE)
    if set(subscription.aside.ordinals()) != aside:
        yield f"13: set aside {sorted(aside)}, listed {list(subscription.aside.ordinals())}"


def _timers(subscription: Subscription) -> Iterator[str]:
    is_set = subscription.timers.is_set
    for epoch, hold in subscription.holds.items():
        if is_set(("hold", epoch)) != (hold.until != NEVER):
            yield f"9: hold {epoch} until {hold.until}"
    for ordinal, mark in subscription.marks.hot.items():
        if mark.due and mark.state in TIMED and not subscription.marks.is_watched(ordinal):
            yield f"9: {ordinal} is due at {mark.due}"
    for attempt in subscription.attempts:
        if not is_set(("attempt", attempt)):
            yield f"9: attempt {attempt!r}"


def _expiry(subscription: Subscription) -> Iterator[str]:
    log = subscription.log
    looks = set(log._expiries)
    mortal = (State.ACTIVE, State.DELAYED, State.DEFERRED)
    for place in log.places:
        index = log.read(place).index
        expiries = [
            expires
            for ordinal, expires in zip(
                index["ordinal"].tolist(), index["expires"].tolist(), strict=True
            )
            if expires != NEVER and subscription.state(ordinal) in mortal
        ]
        if expiries and not (
            place.expires <= min(expiries) and (place.expires, place.first) in looks
        ):
            yield f"10: block {place.block} expires at {min(expiries)}, looked at {place.expires}"


def _offers(subscription: Subscription) -> Iterator[str]:
    sessions = subscription.sessions
    offered = {*sessions._available, *sessions._again}
    for session in sessions.all(subscription.session_name):
        if session.lock is None and session.ready and session.ready[0] < session.barrier():
            first = session.ready[0]
            turn = session.turn(first)
            entry = (first, session.id) if turn is None else (turn, first, session.id)
            if entry not in offered:
                yield f"11: session {session.id!r} could be given out and is not offered"
