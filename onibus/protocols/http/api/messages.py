"""Sending, receiving, settling, peeking over HTTP."""

from __future__ import annotations

import msgspec

from onibus.broker import sending
from onibus.core.errors import InvalidArgument
from onibus.core.message import Sent
from onibus.protocols.http.messages import JSON, Response
from onibus.protocols.http.route import Call
from onibus.protocols.http.schema import (
    MessageIn,
    SentOut,
    message_of,
)

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
    bus = call.bus
    bus.check_alive()
    sending.send_one(bus.broker, call.entity, message_of(given), SentReply(call))
    bus.arm()
