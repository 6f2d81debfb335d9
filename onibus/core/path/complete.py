"""Complete: messages that were received are gone, held still or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.core.errors import InvalidArgument, LockLost, UnknownToken
from onibus.core.holds import TOKEN, check_of
from onibus.core.lifecycle import Input, State
from onibus.core.path.attempts import end_attempt_of
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription

#: A token that ran out is still known after so many restarts.
BOOTS_KNOWN = 8


def find_held(subscription: Subscription, tokens: Sequence[bytes]) -> list[int]:
    """Return the ordinals that tokens hold; one that does not hold refuses all."""
    ordinals = [subscription.held_by(token)[0] for token in tokens]
    if len(set(ordinals)) != len(ordinals):
        raise InvalidArgument("a lock token is listed twice: list each once")
    return ordinals


def complete(subscription: Subscription, ordinals: list[int], out: WriteBatch) -> None:
    """Messages were processed: they are gone."""
    hot = subscription.marks.hot
    for hold in dict.fromkeys([hot[ordinal].hold for ordinal in ordinals]):
        end_attempt_of(subscription, hold, out)
    subscription.end(ordinals, Input.COMPLETE, out)
    subscription.depart(ordinals, out)


def delete(
    subscription: Subscription, tokens: Sequence[bytes], out: WriteBatch
) -> list[LockLost | None]:
    """Delete messages that were received, each by itself; what is gone already is no error.

    From a FIFO queue only while it is held. From another one also when its lock has run out, unless
    somebody else has received it since: then it stays, and nothing is said. Return the refusals.
    """
    refused: list[LockLost | None] = [None] * len(tokens)
    held: dict[int, None] = {}
    for at, token in enumerate(tokens):
        ordinal = subscription.held_ordinal(token, late=not subscription.settings.fifo)
        if ordinal:
            held[ordinal] = None
            continue
        try:
            _delete_late(subscription, token, out)
        except LockLost as refusal:
            refused[at] = refusal
    complete(subscription, list(held), out)
    return refused


def _delete_late(subscription: Subscription, token: bytes, out: WriteBatch) -> None:
    """Delete a message whose lock has run out."""
    ordinal = given_out(subscription, token)
    state = subscription.state(ordinal)
    if subscription.settings.fifo and state is not State.GONE:
        raise LockLost("the lock expired: receive the message again")
    if state is State.ACTIVE:
        subscription.change(ordinal, Input.TAKE, out)
        subscription.depart([ordinal], out)


def given_out(subscription: Subscription, token: bytes) -> int:
    """Return the message that a token was given out for, held or not; refuse other tokens."""
    number, epoch, check = TOKEN.unpack(token)
    partition = subscription.partition
    for boot in range(partition.boot, max(partition.boot - BOOTS_KNOWN, -1), -1):
        if check_of(partition.secret, *subscription.key, boot, epoch) == check:
            candidates = subscription.numbering.candidates(number, subscription.log.next_ordinal)
            if candidates:
                return candidates[0]
    raise UnknownToken("not a lock token of this entity: settle where it was received")
