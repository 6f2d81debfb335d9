"""Claim: set messages aside for a named reader, until it commits or releases the claim (R5).

A claim is a number of holds without an end whose owner is its name; their tokens are never issued.
The claim's row in the namespace's store (directory/claims.py) decides whether the claim exists and
how long it lasts. So everything here can be repeated: messages that were completed or released
before have left no hold of that owner.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.commands import (
    Claim,
    Claimed,
    CompleteClaimed,
    IsClaimed,
    ListClaimed,
    ListClaimOwners,
    ReleaseClaimed,
)
from onibus.core.lifecycle import Input
from onibus.core.path.complete import complete
from onibus.core.path.dead_letter import dead_letter
from onibus.core.path.receive import still_living, take_living
from onibus.core.path.settle import give_back
from onibus.core.records import WriteBatch
from onibus.core.runs import as_runs
from onibus.core.sessions import Session

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription

_PREFIX = "claim/"


def owner_of(reader: str, number: int) -> str:
    """Return the name under which a claim holds its messages."""
    return f"{_PREFIX}{reader}/{number}"


def claim_of(owner: str) -> tuple[str, int] | None:
    """Return the reader and the number of the claim that an owner names, if it is a claim."""
    if not owner.startswith(_PREFIX):
        return None
    reader, _, number = owner.removeprefix(_PREFIX).rpartition("/")
    return reader, int(number)


def claim(partition: Partition, command: Claim, now: int, wall: int, out: WriteBatch) -> Claimed:
    """Hold the first messages that are ready, as far as the bounds of the claim allow."""
    subscription = partition.subscriptions[command.subscription]
    budget = _Budget(subscription, command.bytes_max, command.at_least_one)
    if subscription.settings.requires_session:
        count = _claim_sessions(subscription, command.owner, command.limit, budget, now, out)
    else:
        count = _claim_ready(subscription, command.owner, command.limit, budget, now, out)
    return Claimed(count, budget.used)


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
    """Take the first messages of sessions that are not locked; they block their session (R7)."""
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


def list_owners(
    partition: Partition, command: ListClaimOwners, now: int, wall: int, out: WriteBatch
) -> list[str]:
    """Return the owners of the claims that hold messages here, in the order of their holds."""
    subscription = partition.subscriptions[command.subscription]
    names = dict.fromkeys(hold.owner for hold in subscription.owned.values())
    return [owner for owner in names if owner.startswith(_PREFIX)]


def list_claimed(
    partition: Partition, command: ListClaimed, now: int, wall: int, out: WriteBatch
) -> list[int]:
    """Return the ordinals that a claim holds, in order."""
    return claimed(partition.subscriptions[command.subscription], command.owner)


def claimed(subscription: Subscription, owner: str, limit: int | None = None) -> list[int]:
    """Return the ordinals that a claim holds, in order; with a limit, the first of them."""
    holds = [hold for hold in subscription.owned.values() if hold.owner == owner]
    found = list(chain.from_iterable(hold.ordinals for hold in holds))
    return sorted(found)[:limit]


def is_claimed(
    partition: Partition, command: IsClaimed, now: int, wall: int, out: WriteBatch
) -> bool:
    """Return whether a claim holds a message."""
    subscription = partition.subscriptions[command.subscription]
    mark = subscription.marks.get(subscription.ordinal(command.number))
    hold = None if mark is None else mark.hold
    return hold is not None and hold.owner == command.owner


def complete_claimed(
    partition: Partition, command: CompleteClaimed, now: int, wall: int, out: WriteBatch
) -> int:
    """Complete, or dead-letter, the next messages of a claim; return how many."""
    subscription = partition.subscriptions[command.subscription]
    ordinals = claimed(subscription, command.owner, command.limit)
    done = []
    for ordinal in ordinals:
        words = command.dead_letters.get(subscription.numbering.number(ordinal))
        if words is None:
            done.append(ordinal)
        else:
            dead_letter(subscription, ordinal, *words, out)
    complete(subscription, done, out)
    return len(ordinals)


def release_claimed(
    partition: Partition, command: ReleaseClaimed, now: int, wall: int, out: WriteBatch
) -> int:
    """Release the next messages of a claim; return how many."""
    subscription = partition.subscriptions[command.subscription]
    ordinals = claimed(subscription, command.owner, command.limit)
    for ordinal in ordinals:
        give_back(subscription, ordinal, Input.RELEASE, now, out)
    return len(ordinals)
