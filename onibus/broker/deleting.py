"""Deleting what was received. Requests that arrive together are one command.

A turn of the loop brings the requests of many connections. What they delete is gathered until its
end: to bring the partition up to its time, to write its counters and to note what is gone costs as
much for one of them as for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.broker.entity import Entity
from onibus.broker.replies import Reply, fail
from onibus.broker.settling import has_shape, settle_each
from onibus.core.path.complete import delete

if TYPE_CHECKING:
    from onibus.broker.broker import Broker

#: Tokens, and who is told what became of each.
Deletion = tuple[Sequence[bytes], Reply]


def delete_each(broker: Broker, name: str, tokens: Sequence[bytes], reply: Reply) -> None:
    """Delete messages by their tokens, each by itself, whatever becomes of the others.

    The answer, when all is durable, has None for each, or its refusal.
    """
    entity = broker.find(name)
    if len(entity.seats) > 1 or not all(map(has_shape, tokens)):
        settle_each(
            broker,
            name,
            tokens,
            lambda part, places, now, out: delete(part, [tokens[at] for at in places], out),
            reply,
        )
        return
    gathered = broker.deletions.get(entity)
    if gathered is None:
        gathered = broker.deletions[entity] = []
        broker.call_soon(lambda: _delete_gathered(broker, entity))
    gathered.append((tokens, reply))


def _delete_gathered(broker: Broker, entity: Entity) -> None:
    gathered = broker.deletions.pop(entity)
    seat = entity.seats[0]
    together = [token for tokens, _ in gathered for token in tokens]
    try:
        refusals = broker.use(entity, seat, lambda part, now, out: delete(part, together, out))
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
