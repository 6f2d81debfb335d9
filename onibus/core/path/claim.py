"""Claim: set messages aside for a named reader, until it commits the claim or gives it back (R5).

A claim is kept by holds without an end whose owner is its name; no token of them is ever given
out. Whether there is a claim of that name, and how long it lasts, is decided elsewhere: by its row
in the namespace's own store (broker/claims.py). So everything here can be done again: what was
completed or given back before has left no hold of that owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.lifecycle import Input
from onibus.core.path.complete import complete
from onibus.core.path.dead_letter import dead_letter
from onibus.core.path.receive import still_living, take_living
from onibus.core.path.settle import give_back
from onibus.core.records import WriteBatch
from onibus.core.runs import as_runs
from onibus.core.sessions import Session

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription

_PREFIX = "claim/"

#: By sequence number: with which reason and description a message is dead-lettered.
DeadLetters = Mapping[int, tuple[str | None, str | None]]


def owner_of(reader: str, number: int) -> str:
    """Return the name under which a claim holds its messages."""
    return f"{_PREFIX}{reader}/{number}"


def claim_of(owner: str) -> tuple[str, int] | None:
    """Return the reader and the number of the claim that an owner's name means, if it is one."""
    if not owner.startswith(_PREFIX):
        return None
    reader, _, number = owner.removeprefix(_PREFIX).rpartition("/")
    return reader, int(number)


def claim(
    subscription: Subscription,
    owner: str,
    limit: int,
    room: int | None,
    at_least_one: bool,
    now: int,
    out: WriteBatch,
) -> tuple[int, int] | None:
    """Hold the first messages that are ready, at most `limit`, and no more bytes than `room`.

    With `at_least_one` the first is taken whatever its size. Return how many, and their bytes,
    which are counted only where there is a bound; None where nothing was taken.
    """
    budget = _Budget(subscription, room, at_least_one)
    if subscription.settings.requires_session:
        count = _claim_sessions(subscription, owner, limit, budget, now, out)
    else:
        count = _claim_ready(subscription, owner, limit, budget, now, out)
    return (count, budget.used) if count else None


class _Budget:
    """How many bytes may still be taken."""

    def __init__(self, subscription: Subscription, room: int | None, at_least_one: bool) -> None:
        self._log = subscription.log
        self._room = room
        self._free_one = at_least_one
        self.used = 0
        self.spent = False

    def fit(self, ordinals: list[int]) -> int:
        """Return how many of these, in their order, still fit."""
        if self._room is None:
            return len(ordinals)
        for fitting, ordinal in enumerate(ordinals):
            block, position = self._log.entry(ordinal)
            size = len(block.row(position))
            if self.used + size > self._room and not self._free_one:
                self.spent = True
                return fitting
            self._free_one = False
            self.used += size
        return len(ordinals)


def _claim_ready(
    subscription: Subscription, owner: str, limit: int, budget: _Budget, now: int, out: WriteBatch
) -> int:
    claimed: list[int] = []
    while len(claimed) < limit and not budget.spent:
        taken = subscription.ready.take(limit - len(claimed), subscription.log.visible_below, now)
        if not taken:
            break
        living = still_living(subscription, taken, now, out)
        fitting = budget.fit(living)
        for first, last in as_runs(living[fitting:]):
            subscription.ready.add(first, last)
        claimed += living[:fitting]
    if claimed:
        subscription.lock(claimed, subscription.new_hold(NEVER, 0, None, owner))
    return len(claimed)


def _claim_sessions(
    subscription: Subscription, owner: str, limit: int, budget: _Budget, now: int, out: WriteBatch
) -> int:
    """Take from the heads of sessions that nobody holds; what is taken blocks its session (R7)."""
    sessions = subscription.sessions
    passed: list[Session] = []
    count = 0
    while count < limit and not budget.spent:
        session = sessions.next_free(subscription.log.visible_below, subscription.session_name)
        if session is None:
            break
        passed.append(session)
        wanted = 1 if subscription.settings.one_message_per_group else limit - count
        living = take_living(subscription, session, wanted, now, out)
        fitting = budget.fit(living)
        for ordinal in reversed(living[fitting:]):
            session.ready.insert(0, ordinal)
        if fitting:
            session.fly(living[:fitting], strictly=True)
            hold = subscription.new_hold(NEVER, 0, session.id, owner)
            subscription.lock(living[:fitting], hold)
            count += fitting
    for session in passed:
        sessions.offer(session)
        sessions.forget_idle(session)
    return count


def owners(subscription: Subscription) -> list[str]:
    """Return the names of the claims that hold messages here, in the order of their holds."""
    names = dict.fromkeys(hold.owner for hold in subscription.holds.values())
    return [owner for owner in names if owner.startswith(_PREFIX)]


def claimed(subscription: Subscription, owner: str, limit: int | None = None) -> list[int]:
    """Return the ordinals that a claim holds, in order; with a limit, some of them."""
    holds = [hold for hold in subscription.holds.values() if hold.owner == owner]
    found = list(chain.from_iterable(hold.ordinals for hold in holds))
    return sorted(found)[:limit]


def complete_claimed(
    subscription: Subscription, owner: str, dead_letters: DeadLetters, limit: int, out: WriteBatch
) -> int:
    """Complete, or dead-letter, the next of what a claim holds; return how many."""
    ordinals = claimed(subscription, owner, limit)
    done = []
    for ordinal in ordinals:
        words = dead_letters.get(subscription.numbering.number(ordinal))
        if words is None:
            done.append(ordinal)
        else:
            dead_letter(subscription, ordinal, *words, out)
    complete(subscription, done, out)
    return len(ordinals)


def release_claimed(
    subscription: Subscription, owner: str, limit: int | None, now: int, out: WriteBatch
) -> int:
    """Give the next of what a claim holds back, without counting a delivery; return how many."""
    ordinals = claimed(subscription, owner, limit)
    for ordinal in ordinals:
        give_back(subscription, ordinal, Input.RELEASE, now, out)
    return len(ordinals)
