"""Delete received messages, as SQS does: one that is gone is not an error.

A FIFO queue deletes a message only while it is locked. A standard queue also deletes it after its
lock expired, unless another receiver has received it since: then it stays, without an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import Delete
from onibus.core.errors import LockLost, Refused
from onibus.core.lifecycle import Input, State
from onibus.core.path.complete import complete
from onibus.core.path.held import delivered_under
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def delete(
    partition: Partition, command: Delete, now: int, wall: int, out: WriteBatch
) -> list[Refused | None]:
    """Delete messages by their tokens; return None, or the rejection, for each."""
    subscription = partition.subscriptions[command.subscription]
    rejected: list[Refused | None] = [None] * len(command.tokens)
    held: dict[int, None] = {}
    for at, token in enumerate(command.tokens):
        ordinal = subscription.held_ordinal(token, late=not subscription.settings.fifo)
        if ordinal:
            held[ordinal] = None
            continue
        try:
            _delete_late(subscription, token, out)
        except LockLost as refusal:
            rejected[at] = refusal
    complete(subscription, list(held), out)
    return rejected


def _delete_late(subscription: Subscription, token: bytes, out: WriteBatch) -> None:
    """Delete a message whose lock has expired."""
    ordinal = delivered_under(subscription, token)
    state = subscription.state(ordinal)
    if subscription.settings.fifo and state is not State.GONE:
        raise LockLost("the lock expired: receive the message again")
    if state is State.ACTIVE:
        subscription.change(ordinal, Input.TAKE, out)
        subscription.depart([ordinal], out)
