"""Inspecting over HTTP: one message with its AMQP sections and its life; moving messages."""

from __future__ import annotations

from typing import Any

import msgspec

from onibus.api.delivery import Move, ResubmittedOut
from onibus.api.messages import (
    BodyLimit,
    MessageOut,
    Number,
    beginning,
    filter_of,
    message_out,
    plain_value,
    text_of,
)
from onibus.api.wire import BYTES
from onibus.core import commands
from onibus.core.inspection import Event
from onibus.core.message import ReceivedMessage
from onibus.directory.routing import partition_of_number
from onibus.protocols.amqp.decode import decode
from onibus.protocols.amqp.errors import DecodeError
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.outgoing import write_message
from onibus.protocols.http.api.tidying import resubmitted_out
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right

_HEADER = ("durable", "priority", "ttl", "first-acquirer", "delivery-count")
_PROPERTIES = (
    *("message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type"),
    *("content-encoding", "absolute-expiry-time", "creation-time", "group-id", "group-sequence"),
    "reply-to-group-id",
)
_TITLES = {
    sections.HEADER: "header",
    sections.DELIVERY_ANNOTATIONS: "delivery annotations",
    sections.ANNOTATIONS: "message annotations",
    sections.PROPERTIES: "properties",
    sections.APPLICATION_PROPERTIES: "application properties",
    sections.DATA: "data",
    sections.SEQUENCE: "sequence",
    sections.VALUE: "value",
    sections.FOOTER: "footer",
}
#: A browser saves it, whatever it contains.
_SAVED = (
    ("content-disposition", "attachment"),
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
)
_FIELDS = {sections.HEADER: _HEADER, sections.PROPERTIES: _PROPERTIES}


class Inspect(msgspec.Struct, forbid_unknown_fields=True):
    """The message to show."""

    number: Number
    #: false leaves out the body and the sections
    whole: bool = True
    #: bytes of the body and of each section; default: all. A list or map is never cut
    body_limit: BodyLimit | None = None


class SectionOut(msgspec.Struct):
    """A section of the message as AMQP clients receive it."""

    name: str
    #: a map, a list or a value; bytes are {"binary": base64} unless they are a string in UTF-8
    value: Any


class Inspected(msgspec.Struct):
    """One message, its AMQP sections, and its life so far."""

    message: MessageOut
    sections: list[SectionOut]
    life: list[Event]


async def inspect(call: Call) -> Inspected:
    """Return one message, without locking it."""
    given: Inspect = call.decode(Inspect)
    call.app.refuse_crowds()
    broker = call.bus.broker
    entity = broker.find(call.entity)
    partition = partition_of_number(entity, given.number)
    life = broker.use(entity, partition, commands.Inspect(entity.number, given.number))
    if not given.whole:
        return Inspected(message_out(life.message, 0), [], life.events)
    shown = message_out(life.message, given.body_limit)
    return Inspected(shown, _sections(life.message, given.body_limit), life.events)


async def body(call: Call) -> Response:
    """Return the body of a message as it was sent, without locking it."""
    call.app.refuse_crowds()
    broker, number = call.bus.broker, call.number("number")
    entity = broker.find(call.entity)
    partition = partition_of_number(entity, number)
    life = broker.use(entity, partition, commands.Inspect(entity.number, number))
    return Response(200, life.message.message.body, BYTES, _SAVED)


def _sections(received: ReceivedMessage, limit: int | None) -> list[SectionOut]:
    """Return the sections that an AMQP client would receive."""
    try:
        data = write_message(received)
        return [_section(data, *one, limit) for one in sections.split(data)]
    except DecodeError as error:
        return [SectionOut("unreadable", str(error))]


def _section(data: bytes, code: int, _: int, at: int, end: int, limit: int | None) -> SectionOut:
    if limit is not None and end - at > limit and code != sections.DATA:
        # Decoding a list of millions would delay other clients.
        return SectionOut(_TITLES[code], f"{end - at} bytes: save the body to see them")
    value, _ = decode(data, at)
    if code == sections.DATA and limit is not None and len(value) > limit:
        text, binary = beginning(value, limit)
        return SectionOut(_TITLES[code], {"binary": binary} if text is None else text)
    names = _FIELDS.get(code)
    if names is not None and isinstance(value, list):
        value = {name: one for name, one in zip(names, value, strict=False) if one is not None}
    return SectionOut(_TITLES[code], _as_json(value))


def _as_json(value: Any) -> Any:
    """Return a decoded value as JSON; what JSON lacks becomes a string."""
    if isinstance(value, dict):
        return {str(key): _as_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    if isinstance(value, bytes):
        text, _ = text_of(value)
        return plain_value(value) if text is None else text
    if value is None or isinstance(value, (bool, float)):
        return value
    # Timestamps are numbers, and symbols strings.
    return int(value) if isinstance(value, int) else str(value)


async def move(call: Call) -> ResubmittedOut:
    """Move active messages that no receiver holds to another entity."""
    given: Move = call.decode(Move)
    call.grant(Right.SEND, given.to)
    done = await call.bus.move(
        call.entity,
        given.to,
        given.numbers,
        where=None if given.where is None else filter_of(given.where),
        limit=given.limit,
        dry_run=given.dry_run,
    )
    return resubmitted_out(done)


ROUTES = [
    Route(
        method="POST",
        path="/v1/entities/{entity}/inspect",
        summary="Show one message with its AMQP sections and its life so far.",
        right=Right.LISTEN,
        handler=inspect,
        takes=Inspect,
        gives=Inspected,
        tag="searching",
    ),
    Route(
        method="GET",
        path="/v1/entities/{entity}/messages/{number}/body",
        summary="Return the body of one message as it was sent, without locking it.",
        right=Right.LISTEN,
        handler=body,
        gives_bytes=True,
        tag="searching",
    ),
    Route(
        method="POST",
        path="/v1/entities/{entity}/move",
        summary="Move active messages to another entity.",
        right=Right.MANAGE,
        handler=move,
        takes=Move,
        gives=ResubmittedOut,
        tag="tidying",
    ),
]
