"""Sending, receiving, settling, peeking over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec

from onibus.broker import sending
from onibus.core.errors import InvalidArgument
from onibus.core.message import Sent
from onibus.protocols.http.messages import ARROW, JSON, Response
from onibus.protocols.http.route import Call, Route
from onibus.protocols.http.schema import (
    MessageIn,
    MessageOut,
    SentOut,
    message_of,
    message_out,
    sent_out,
    token_of,
)
from onibus.protocols.http.tracing import put_trace
from onibus.security.rights import Right

_decode_message = msgspec.json.Decoder(MessageIn).decode
_encode = msgspec.json.Encoder().encode


class SentReply:
    """Answers a send over HTTP without a task or a future: this is the call that is made most."""

    __slots__ = ("_call", "_done")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: list[Sent]) -> None:
        self._done = True
        sent = result[0]
        self._call.respond(Response(200, _encode(SentOut(sent.sequence_number, sent.duplicate_of))))

    def set_exception(self, exception: BaseException) -> None:
        self._done = True
        self._call.app.fail(exception, self._call.respond)


def send(call: Call) -> None:
    """Store one message."""
    if call.request.content_type != JSON:
        raise InvalidArgument(f"send {JSON}, not {call.request.content_type}")
    try:
        given = _decode_message(call.request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body cannot be read: {error}") from None
    put_trace(call.request, given)
    bus = call.bus
    bus.check_alive()
    sending.send_one(bus.broker, call.entity, message_of(given), SentReply(call))
    bus.arm()


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that are stored together, or not at all."""

    messages: list[MessageIn]


class SentBatchOut(msgspec.Struct, omit_defaults=True):
    """What became of the messages of a batch, in their order; of Arrow rows, counts only."""

    accepted: int
    duplicates: int
    sent: list[SentOut] = []


async def send_batch(call: Call) -> SentBatchOut:
    """Store messages together: as JSON, or in bulk as an Arrow IPC stream."""
    if call.request.content_type == ARROW:
        result = await call.bus.send_arrow(call.entity, read_arrow(call.request.body))
        return SentBatchOut(result.accepted, result.duplicates)
    given: Batch = call.decode(Batch)
    for one in given.messages:
        put_trace(call.request, one)
    messages = [message_of(one) for one in given.messages]
    sent = [sent_out(one) for one in await call.bus.send_batch(call.entity, messages)]
    dropped = sum(one.duplicate_of is not None for one in sent)
    return SentBatchOut(len(sent) - dropped, dropped, sent)


class Receive(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much to receive, and for how long to wait for it."""

    limit: int = 1
    wait_ms: int = 0
    dead_letters: bool = False
    #: messages are gone when they are received; otherwise they are locked until settled
    delete: bool = False


class Messages(msgspec.Struct):
    """Messages, in order."""

    messages: list[MessageOut]


async def receive(call: Call) -> Messages:
    """Receive messages, waiting for the first if there is none."""
    given: Receive = call.decode(Receive)
    receiver = call.bus.receiver(call.entity, dead_letters=given.dead_letters, delete=given.delete)
    received = await receiver.receive(given.limit, wait_ms=given.wait_ms)
    return Messages([message_out(one) for one in received])


class Complete(msgspec.Struct, forbid_unknown_fields=True):
    """The tokens of messages that were processed."""

    tokens: list[str]


async def complete(call: Call) -> None:
    """Complete messages: all of them, or none."""
    given: Complete = call.decode(Complete)
    receiver = call.bus.receiver(call.entity)
    await receiver.complete([token_of(one) for one in given.tokens])


def read_arrow(body: bytes) -> Any:
    """Return the table of an Arrow IPC stream that came from a client."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(body) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"the body is no Arrow IPC stream: {error}") from None


_AT = "/v1/entities/{entity}"

ROUTES = [
    Route(
        method="POST",
        path=f"{_AT}/messages",
        summary="Send a message.",
        right=Right.SEND,
        fast=send,
        takes=MessageIn,
        gives=SentOut,
        tag="messages",
    ),
    Route(
        method="POST",
        path=f"{_AT}/batch",
        summary="Send messages together, all or none.",
        right=Right.SEND,
        handler=send_batch,
        takes=Batch,
        takes_arrow=True,
        gives=SentBatchOut,
        tag="messages",
    ),
    Route(
        method="POST",
        path=f"{_AT}/receive",
        summary="Receive messages, waiting for the first.",
        right=Right.LISTEN,
        handler=receive,
        takes=Receive,
        gives=Messages,
        tag="messages",
    ),
    Route(
        method="POST",
        path=f"{_AT}/complete",
        summary="Complete messages that are held: all of them, or none.",
        right=Right.LISTEN,
        handler=complete,
        takes=Complete,
        tag="messages",
    ),
]
