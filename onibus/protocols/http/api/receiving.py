"""Receiving over HTTP: from a queue or subscription, by sequence number, and with FIFO semantics.

A request waits at most 20 s for messages (`wait_ms`); to wait longer, send another. When a client
disconnects its wait ends, and no message is locked for it.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from onibus.api.delivery import (
    FifoMessages,
    LockedUntil,
    Receive,
    ReceiveDeferred,
    ReceiveFifo,
    Visibility,
)
from onibus.api.messages import (
    Messages,
    token_of,
)
from onibus.core.message import ReceivedMessage
from onibus.gateway import receiving, settling
from onibus.protocols.http.listing import messages_out
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


def receive(call: Call) -> None:
    """Receive messages, waiting for the first if none is available."""
    given: Receive = call.decode(Receive)
    call.ask(
        lambda reply: receiving.receive(
            call.bus.broker,
            call.entity,
            given.limit,
            given.wait_ms,
            reply,
            dead=given.dead_letters,
            take=given.delete,
            bytes_max=call.app.limits.answer_bytes_max,
        ),
        messages_out,
    )


def receive_deferred(call: Call) -> None:
    """Receive deferred messages by sequence number."""
    given: ReceiveDeferred = call.decode(ReceiveDeferred)
    call.ask(
        lambda reply: settling.receive_deferred(
            call.bus.broker,
            call.entity,
            given.numbers,
            reply,
            dead=given.dead_letters,
            take=given.delete,
            bytes_max=call.app.limits.answer_bytes_max,
        ),
        messages_out,
    )


def receive_fifo(call: Call) -> None:
    """Receive messages of groups without a message in flight."""
    given: ReceiveFifo = call.decode(ReceiveFifo)
    attempt_id = uuid4().hex if given.attempt_id is None else given.attempt_id

    def told(received: list[ReceivedMessage]) -> Any:
        return messages_out(received, lambda messages: FifoMessages(messages, attempt_id))

    call.ask(
        lambda reply: receiving.receive_fifo(
            call.bus.broker,
            call.entity,
            given.limit,
            given.wait_ms,
            reply,
            visibility_ms=given.visibility_ms,
            attempt_id=attempt_id,
            bytes_max=call.app.limits.answer_bytes_max,
        ),
        told,
    )


async def change_visibility(call: Call) -> LockedUntil:
    given: Visibility = call.decode(Visibility)
    receiver = call.bus.fifo_receiver(call.entity)
    until = await receiver.change_visibility(token_of(given.token), given.visibility_ms)
    return LockedUntil(until)


def _route(path: str, summary: str, takes: Any, gives: Any, **more: Any) -> Route:
    return Route(
        method="POST",
        path=f"/v1/entities/{{entity}}{path}",
        summary=summary,
        right=Right.LISTEN,
        takes=takes,
        gives=gives,
        **more,
    )


ROUTES = [
    _route(
        "/receive",
        "Receive messages; wait for the first one.",
        Receive,
        Messages,
        fast=receive,
        tag="messages",
    ),
    _route(
        "/receive-deferred",
        "Receive deferred messages by their sequence numbers, atomically.",
        ReceiveDeferred,
        Messages,
        fast=receive_deferred,
        tag="messages",
    ),
    _route(
        "/fifo/receive",
        "Receive messages of a FIFO queue, group by group.",
        ReceiveFifo,
        FifoMessages,
        fast=receive_fifo,
        tag="fifo",
    ),
    _route(
        "/fifo/visibility",
        "Change the visibility timeout of a message; 0 makes it visible.",
        Visibility,
        LockedUntil,
        handler=change_visibility,
        tag="fifo",
    ),
]
