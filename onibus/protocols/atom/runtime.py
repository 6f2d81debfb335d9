"""The REST runtime API of Service Bus: sending, receiving and settling over HTTP (B11).

| request                                  | what it does             | answers |
| POST   {entity}/messages                 | send a message or batch  | 201     |
| POST   {entity}/messages/head            | peek-lock                | 201     |
| DELETE {entity}/messages/head            | receive and delete       | 200     |
| DELETE {entity}/messages/{id}/{token}    | complete                 | 200     |
| PUT    {entity}/messages/{id}/{token}    | unlock (abandon)         | 200     |
| POST   {entity}/messages/{id}/{token}    | renew the lock           | 200     |

An empty receive returns 204 after `timeout` seconds. Only the lock token settles a message. Each
call gives the broker the command that AMQP gives it.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote
from uuid import UUID

from onibus.core.commands import COMPLETE, Settlement
from onibus.core.errors import InvalidArgument
from onibus.core.message import ReceivedMessage
from onibus.directory import routing
from onibus.gateway import receiving, sending, settling
from onibus.protocols.atom.broker_properties import (
    BATCH,
    content_type_of,
    headers_of,
    message_of,
    messages_of,
    moment,
)
from onibus.protocols.atom.call import AtomCall
from onibus.protocols.atom.values import whole
from onibus.protocols.http.messages import Response
from onibus.shard.replies import OfClient

#: [SB] How long a receive waits by default, and at most.
_TIMEOUT_S = 60


async def send(call: AtomCall) -> Response:
    """Store a message, or a batch atomically."""
    request, entity, profile = call.request, call.place.entity, call.profile
    settings = routing.open_for_sends(call.bus.broker, entity).log_settings
    if request.content_type == BATCH:
        profile.check_batch(len(request.body), settings)
        messages = messages_of(request.body)
        for message in messages:
            profile.check_fields(message)
        strict = profile.strict_batches
        await call.bus.ask(
            lambda reply: sending.send(
                call.bus.broker,
                entity,
                messages,
                OfClient(reply, request.has_left),
                strict=strict,
            )
        )
    else:
        profile.check_message(len(request.body), settings)
        message = message_of(request)
        profile.check_fields(message)
        await call.bus.send(entity, message)
    return Response(201)


async def peek_lock(call: AtomCall) -> Response:
    """Lock and return the first message that is available."""
    found = await _receive(call, take=False)
    if not found:
        return Response(204)
    token = found[0].token
    assert token is not None
    name = found[0].message_id or str(found[0].sequence_number)
    path = f"{call.place.path}/messages/{quote(name, safe='')}/{UUID(bytes=token)}"
    location = call.address(path)
    return _shown(found[0], 201, (("location", location),))


async def receive_and_delete(call: AtomCall) -> Response:
    """Return the first message that is available, and delete it."""
    found = await _receive(call, take=True)
    return _shown(found[0], 200) if found else Response(204)


async def _receive(call: AtomCall, take: bool) -> list[ReceivedMessage]:
    timeout = whole(call.request.query.get("timeout", str(_TIMEOUT_S)))
    if timeout < 0:
        raise InvalidArgument("timeout must be a number of seconds, 0 or more")
    bus, place = call.bus, call.place
    bus.check_alive()
    reply: asyncio.Future[list[ReceivedMessage]] = asyncio.get_running_loop().create_future()
    wait_ms = min(timeout, _TIMEOUT_S) * 1_000
    waiter = receiving.receive(
        bus.broker, place.entity, 1, wait_ms, reply, dead=place.dead, take=take
    )
    if waiter is not None:
        call.request.hurry = lambda: receiving.stop_waiting(bus.broker, waiter)
    return await reply


def _shown(found: ReceivedMessage, status: int, more: tuple[tuple[str, str], ...] = ()) -> Response:
    kind = content_type_of(found.message)
    return Response(status, found.body, kind, (*headers_of(found), *more))


async def complete(call: AtomCall) -> Response:
    """Complete a message that is locked."""
    return await _settle(call, COMPLETE)


async def unlock(call: AtomCall) -> Response:
    """Abandon a message that is locked."""
    return await _settle(call, Settlement("abandon"))


async def _settle(call: AtomCall, settlement: Settlement) -> Response:
    broker, entity, tokens = call.bus.broker, call.place.entity, [UUID(call.place.token).bytes]
    await call.bus.ask(lambda reply: settling.settle_all(broker, entity, tokens, settlement, reply))
    return Response(200)


async def renew_lock(call: AtomCall) -> Response:
    """Hold a message for another lock duration."""
    broker, entity, token = call.bus.broker, call.place.entity, UUID(call.place.token).bytes
    until = await call.bus.ask(lambda reply: settling.renew_one(broker, entity, token, reply))
    properties = f'{{"LockedUntilUtc":"{moment(until)}"}}'
    return Response(200, headers=(("BrokerProperties", properties),))
