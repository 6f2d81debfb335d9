"""Deleting received messages. Requests that arrive together are one command.

A turn of the loop brings the requests of many connections. Their deletes are gathered until its
end: to bring the partition up to its time, to write its counters and to record what is gone costs
as much for one of them as for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.broker import settling
from onibus.broker.entity import Entity
from onibus.broker.replies import Reply, fail
from onibus.core.commands import Delete, check_token
from onibus.core.errors import UnknownToken

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

#: Tokens, and the reply that gets a result for each.
Deletion = tuple[Sequence[bytes], Reply]


def delete_each(broker: Broker, name: str, tokens: Sequence[bytes], reply: Reply) -> None:
    """Delete messages by their tokens, independently of each other.

    The reply gets None, or the rejection, for each when all is durable.
    """
    entity = broker.find(name)
    if len(entity.seats) > 1 or not all(map(_has_shape, tokens)):
        settling.delete_each(broker, entity, tokens, reply)
        return
    gathered = broker.deletions.get(entity)
    if gathered is None:
        gathered = broker.deletions[entity] = []
        broker.call_soon(lambda: _delete_gathered(broker, entity))
    gathered.append((tokens, reply))


def _has_shape(token: bytes) -> bool:
    try:
        check_token(token)
    except UnknownToken:
        return False
    return True


def _delete_gathered(broker: Broker, entity: Entity) -> None:
    gathered = broker.deletions.pop(entity)
    seat = entity.seats[0]
    together = [token for tokens, _ in gathered for token in tokens]
    try:
        refusals = broker.use(entity, seat, Delete(entity.number, together))
    except Exception as error:
        for _, reply in gathered:
            fail(reply, error)
        return
    assert seat.store.loop is not None
    at = 0
    for tokens, reply in gathered:
        seat.store.loop.answer_after(reply, refusals[at : at + len(tokens)])
        at += len(tokens)
    broker.start(seat.store)
