"""Peek: look at messages without touching them; and find the ones a filter means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from onibus.core.errors import InvalidArgument
from onibus.core.inspection import Filter
from onibus.core.lifecycle import DEAD, State
from onibus.core.limits import PEEK_BYTES_MAX
from onibus.core.message import ReceivedMessage, encode

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription

#: The words by which people name states, and the states they mean.
STATES: dict[str, frozenset[State]] = {
    "active": frozenset({State.ACTIVE, State.LOCKED, State.DELAYED}),
    "deferred": frozenset({State.DEFERRED, State.DEFERRED_LOCKED}),
    "scheduled": frozenset({State.SCHEDULED}),
    "dead-lettered": DEAD,
}


def states_of(wanted: Filter, dead: bool) -> frozenset[State]:
    """Return the states that a filter asks for, in the queue or in its dead-letter queue.

    Refuses a filter of which any part is wrong.
    """
    if not isinstance(wanted, Filter):
        raise InvalidArgument(f"pass a Filter, not a {type(wanted).__name__}")
    try:
        msgspec.convert(msgspec.structs.asdict(wanted), Filter, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"a field of the filter has the wrong type: {error}") from None
    if wanted.sql_parameters and wanted.sql is None:
        raise InvalidArgument("sql_parameters need an SQL filter: set sql as well")
    _ = wanted.condition  # its SQL is read here, or refused
    if wanted.body_path is not None:
        _ = wanted.steps
    elif wanted.body_equals is not None:
        raise InvalidArgument("body_equals needs body_path: name the field of the body")
    if dead and wanted.state not in (None, "dead-lettered"):
        raise InvalidArgument(
            f"a dead-letter queue has no {wanted.state} messages: omit one of the two"
        )
    if wanted.state is None:
        return DEAD if dead else frozenset(State) - DEAD - {State.GONE}
    if wanted.state not in STATES:
        raise InvalidArgument(f"state is {wanted.state!r}: use one of {', '.join(STATES)}")
    return STATES[wanted.state]


#: Bytes of bodies that a filter reads before other clients have their turn.
SLICE_BYTES = 512 << 10


class Page:
    """What a peek finds in a partition: at most `limit` messages, and 256 KB, but one at least."""

    def __init__(self, limit: int, wanted: Filter, dead: bool) -> None:
        self.messages: list[ReceivedMessage] = []
        self._limit = limit
        self._wanted = wanted
        self._states = states_of(wanted, dead)
        self._size = 0
        #: there may be more that match: the page has no room
        self.is_full = False
        #: messages looked at
        self.looked = 0

    def fill(self, subscription: Subscription, start: int, looks: int) -> int:
        """Look at the next messages from an ordinal on; return where to go on, 0 at the end."""
        size = 0
        for looked, ordinal in enumerate(_candidates(subscription, start, self._states)):
            if looked == looks or size > SLICE_BYTES:
                return ordinal
            if subscription.state(ordinal) not in self._states:
                continue
            message = subscription.view(ordinal)
            size += len(message.body)
            self.looked += 1
            if self._wanted.matches(message) and not self._take(message):
                break
        return 0

    def _take(self, message: ReceivedMessage) -> bool:
        """Take a message along, if it fits; tell whether there is room for another."""
        # All of it: a message can be large without a body.
        self._size += len(encode(message.message))
        self.is_full = bool(self.messages) and self._size > PEEK_BYTES_MAX
        if self.is_full:
            return False
        self.messages.append(message)
        self.is_full = len(self.messages) >= self._limit
        return not self.is_full


def live_ordinals(
    subscription: Subscription, start: int, states: frozenset[State]
) -> Iterator[int]:
    """Yield the shown ordinals in these states, from `start` on, in order."""
    for ordinal in _candidates(subscription, start, states):
        if subscription.state(ordinal) in states:
            yield ordinal


def _candidates(subscription: Subscription, start: int, states: frozenset[State]) -> Iterator[int]:
    """Yield the shown ordinals that may be in these states: as few others as can be told."""
    below = subscription.log.visible_below
    if State.ACTIVE in states:
        return _outside(subscription.gone.next_outside, max(start, 1), below)
    apart = subscription.dead if states <= DEAD else subscription.aside
    return takewhile(lambda ordinal: ordinal < below, apart.ordinals(start))


def _outside(next_outside: Callable[[int], int], ordinal: int, below: int) -> Iterator[int]:
    while (ordinal := next_outside(ordinal)) < below:
        yield ordinal
        ordinal += 1
