"""Receiving over HTTP: from a queue or subscription, by numbers, and as a FIFO queue gives.

A request waits at most 20 s for messages (`wait_ms`); whoever wants to wait longer asks again. A
client that goes while it waits is let go, and gets nothing under a lock.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec

from onibus.broker import receiving, settling
from onibus.core.message import ReceivedMessage
from onibus.protocols.http.route import Call, Route
from onibus.protocols.http.schema import (
    Count,
    MessageOut,
    Messages,
    Numbers,
    Token,
    WaitMs,
    message_out,
    messages_out,
    token_of,
)
from onibus.security.rights import Right


class Receive(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much to receive, and for how long to wait for it."""

    limit: Count = 1
    wait_ms: WaitMs = 0
    dead_letters: bool = False
    #: messages are gone when they are received; otherwise they are locked until settled
    delete: bool = False


def receive(call: Call) -> None:
    """Receive messages, waiting for the first if there is none."""
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


class ReceiveDeferred(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which deferred messages to receive: all of them, or none."""

    numbers: Numbers
    dead_letters: bool = False
    delete: bool = False


def receive_deferred(call: Call) -> None:
    """Receive deferred messages by their numbers."""
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


class ReceiveFifo(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much to receive from a FIFO queue (F9, F10)."""

    limit: Count = 1
    wait_ms: WaitMs = 0
    #: how long messages stay in flight; the queue's own lock duration if left out
    visibility_ms: int | None = None
    #: the same id gives the same messages again while they are in flight; one is made if left out
    attempt_id: str | None = None


class FifoMessages(msgspec.Struct):
    """Messages of a FIFO queue, and the attempt id that gives them again."""

    messages: list[MessageOut]
    attempt_id: str


def receive_fifo(call: Call) -> None:
    """Receive messages of groups of which nothing is in flight."""
    given: ReceiveFifo = call.decode(ReceiveFifo)
    attempt_id = uuid4().hex if given.attempt_id is None else given.attempt_id

    def told(received: list[ReceivedMessage]) -> FifoMessages:
        return FifoMessages([message_out(one) for one in received], attempt_id)

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


class Visibility(msgspec.Struct, forbid_unknown_fields=True):
    """For how long a message stays in flight from now on; 0 gives it back."""

    token: Token
    visibility_ms: int


class LockedUntil(msgspec.Struct):
    """Until when something is held."""

    locked_until_ms: int


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
        "Receive messages, waiting for the first.",
        Receive,
        Messages,
        fast=receive,
        tag="messages",
    ),
    _route(
        "/receive-deferred",
        "Receive deferred messages by their sequence numbers: all of them, or none.",
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
        "Let a message stay in flight for another time, or give it back.",
        Visibility,
        LockedUntil,
        handler=change_visibility,
        tag="fifo",
    ),
]
