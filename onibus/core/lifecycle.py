"""The life of a message in a subscription: one table, (state, input) → state.

Rules: every change of a message's state goes through `advance`; a pair that is not in the table is
an error; `docs/lifecycle.md` is drawn from the table. Dead-lettering moves nothing: a dead-lettered
message keeps its number and its row, and has the same life in the dead-letter queue, except that
it neither expires nor is dead-lettered again.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache

from onibus.core.errors import InvalidOperation


class State(IntEnum):
    """Where a message is. The values are stored: they never change."""

    ACTIVE = 0
    LOCKED = 1
    DELAYED = 2
    DEFERRED = 3
    DEFERRED_LOCKED = 4
    SCHEDULED = 5
    DEAD_LETTERED = 6
    DEAD_LETTERED_LOCKED = 7
    DEAD_LETTERED_DELAYED = 8
    DEAD_LETTERED_DEFERRED = 9
    DEAD_LETTERED_DEFERRED_LOCKED = 10
    GONE = 11

    # Enum's own hash is a Python function, which each table lookup would call.
    __hash__ = int.__hash__


class Input(IntEnum):
    """What can happen to a message."""

    LOCK = 0  #: a receiver locks it
    TAKE = 1  #: a receiver receives and deletes it
    COMPLETE = 2
    ABANDON = 3  #: its receiver abandons it, or its lock expires
    RELEASE = 4  #: released without counting a delivery (its session was closed)
    DELAY = 5  #: its receiver abandons it with a delay
    DEFER = 6
    DEAD_LETTER = 7
    DUE = 8  #: its delay has passed, or it is reactivated after deferral
    EXPIRE = 9
    ACTIVATE = 10  #: its scheduled time is due: it is enqueued under a new sequence number
    CANCEL = 11
    PURGE = 12
    MOVE = 13  #: it is forwarded to another entity, or resubmitted

    __hash__ = int.__hash__


_LIVES = (
    # (unlocked, locked, delayed, deferred, deferred and locked)
    (State.ACTIVE, State.LOCKED, State.DELAYED, State.DEFERRED, State.DEFERRED_LOCKED),
    (
        State.DEAD_LETTERED,
        State.DEAD_LETTERED_LOCKED,
        State.DEAD_LETTERED_DELAYED,
        State.DEAD_LETTERED_DEFERRED,
        State.DEAD_LETTERED_DEFERRED_LOCKED,
    ),
)

LIFECYCLE: dict[tuple[State, Input], State] = {
    (State.SCHEDULED, Input.ACTIVATE): State.GONE,
    (State.SCHEDULED, Input.CANCEL): State.GONE,
    (State.SCHEDULED, Input.PURGE): State.GONE,
}
for active, locked, delayed, deferred, deferred_locked in _LIVES:
    LIFECYCLE |= {
        (active, Input.LOCK): locked,
        (active, Input.TAKE): State.GONE,
        (active, Input.PURGE): State.GONE,
        (active, Input.MOVE): State.GONE,
        (locked, Input.MOVE): State.GONE,
        (locked, Input.COMPLETE): State.GONE,
        (locked, Input.ABANDON): active,
        (locked, Input.RELEASE): active,
        (locked, Input.DELAY): delayed,
        (locked, Input.DEFER): deferred,
        (delayed, Input.DUE): active,
        (delayed, Input.PURGE): State.GONE,
        (deferred, Input.LOCK): deferred_locked,
        (deferred, Input.TAKE): State.GONE,
        (deferred, Input.DUE): active,
        (deferred, Input.PURGE): State.GONE,
        (deferred_locked, Input.COMPLETE): State.GONE,
        (deferred_locked, Input.ABANDON): deferred,
        (deferred_locked, Input.RELEASE): deferred,
        (deferred_locked, Input.DELAY): deferred,
        (deferred_locked, Input.DEFER): deferred,
    }
for state in _LIVES[0]:
    LIFECYCLE[state, Input.DEAD_LETTER] = State.DEAD_LETTERED
for state in (State.ACTIVE, State.DELAYED, State.DEFERRED):
    LIFECYCLE[state, Input.EXPIRE] = State.GONE

#: The state that remains when the lock is released; `marks` rows hold this one.
UNLOCKED: dict[State, State] = {state: state for state in State} | {
    State.LOCKED: State.ACTIVE,
    State.DEFERRED_LOCKED: State.DEFERRED,
    State.DEAD_LETTERED_LOCKED: State.DEAD_LETTERED,
    State.DEAD_LETTERED_DEFERRED_LOCKED: State.DEAD_LETTERED_DEFERRED,
}
HELD = frozenset(state for state in State if UNLOCKED[state] != state)
DEAD = frozenset(_LIVES[1])
#: States whose mark may carry a time at which the message comes back.
TIMED = frozenset(
    {
        State.DELAYED,
        State.DEAD_LETTERED_DELAYED,
        State.DEFERRED,
        State.SCHEDULED,
        State.DEAD_LETTERED_DEFERRED,
    }
)
#: Messages that wait for a receiver to request them, or for their time.
ASIDE = frozenset({State.DEFERRED, State.DEFERRED_LOCKED, State.SCHEDULED})


def advance(state: State, event: Input) -> State:
    """Return the state that follows, or reject the input."""
    following = LIFECYCLE.get((state, event))
    if following is None:
        raise InvalidOperation(f"a message that is {words(state)} cannot {words(event)}")
    return following


def words(member: State | Input) -> str:
    """Return a state or an input as people say it."""
    return _words(member.name)


@cache
def _words(name: str) -> str:
    # By name: as numbers, members of State and Input are equal to each other.
    return name.lower().replace("_", " ").replace("dead letter", "dead-letter")
