"""Sending over HTTP: one message, a batch, scheduled messages, and their cancellation.

Responses contain each message's sequence number and, if it was dropped as a duplicate, the number
of the original message (X9).
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec.structs import replace

from onibus.api.delivery import Batch, MessageNumbers, Schedule, SentBatchOut
from onibus.api.messages import MessageIn, SentOut, message_of, sent_out
from onibus.api.wire import ARROW
from onibus.core.message import Message, Sent, SentBatch
from onibus.directory import routing
from onibus.gateway import sending
from onibus.protocols.http.arrow import read_stream, table_response
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, CallResponse, Route
from onibus.protocols.http.tracing import TRACE_HEADER, put_trace
from onibus.security.rights import Right
from onibus.shard.replies import OfClient

_decode_message = msgspec.json.Decoder(MessageIn)

#: Larger batches, and those of more messages, are admitted on a thread, while the event loop serves
#: other requests.
_ADMITTED_HERE_BYTES = 256 << 10
_ADMITTED_HERE_COUNT = 500


def send(call: Call) -> None:
    """Store one message: the most frequent call."""
    given = call.read(_decode_message)
    if TRACE_HEADER in call.request.head.headers:
        put_trace(call.request, given)
    bus = call.app.bus
    bus.check_alive()
    # Not through `ask`: the commit finds the next work itself.
    sending.send_one(bus.broker, call.entity, message_of(given), CallResponse(call, _first))


def _first(sent: list[Sent]) -> SentOut:
    return SentOut(sent[0].sequence_number, sent[0].duplicate_of)


def send_batch(call: Call) -> None:
    """Store messages together, as JSON or in bulk as an Arrow IPC stream."""
    if call.request.content_type == ARROW:
        call.app.run(_send_arrow(call), call)
    elif _is_large(call.body):
        call.app.run(_send_many(call), call)
    else:
        messages = read_batch(call)
        call.ask(
            lambda reply: sending.send(call.bus.broker, call.entity, messages, reply), _batch_out
        )


def _is_large(body: bytes) -> bool:
    """Return whether admitting a batch would delay other requests; each message has a brace."""
    return len(body) > _ADMITTED_HERE_BYTES or body.count(b"{") > _ADMITTED_HERE_COUNT


def read_batch(call: Call) -> list[Any]:
    """Return the messages of a JSON batch."""
    given: Batch = call.decode(Batch)
    put_trace(call.request, *given.messages)
    return [message_of(one) for one in given.messages]


def _batch_out(sent: list[Sent]) -> SentBatchOut:
    told = [sent_out(one) for one in sent]
    dropped = sum(one.duplicate_of is not None for one in told)
    return SentBatchOut(len(told) - dropped, dropped, told)


async def _send_many(call: Call) -> Response:
    broker = call.bus.broker
    admission = sending.Admission(broker, routing.open_for_sends(broker, call.entity))

    def admit() -> list[Message]:
        messages = read_batch(call)
        admission.admit(messages)
        return messages

    messages = await asyncio.to_thread(admit)
    sent: list[Sent] = await call.bus.ask(
        lambda reply: sending.send(
            broker,
            call.entity,
            messages,
            OfClient(reply, call.request.has_left),
            admission=admission,
        )
    )
    return await call.encode(_batch_out, sent)


async def _send_arrow(call: Call) -> SentBatchOut | Response:
    table = await asyncio.to_thread(read_stream, call.body, call.app.limits.table_bytes_max)
    admission = await call.bus.admit_arrow(call.entity, table)
    result: SentBatch = await call.bus.ask(
        lambda reply: admission.send(OfClient(reply, call.request.has_left))
    )
    if not call.request.accepts(ARROW):
        return SentBatchOut(result.accepted, result.duplicates)
    import pyarrow as pa

    columns = {"sequence_number": result.sequence_number, "duplicate_of": result.duplicate_of}
    told = pa.table(columns)
    return table_response(told.schema, told.to_batches())


async def schedule(call: Call) -> SentOut:
    given: Schedule = call.decode(Schedule)
    put_trace(call.request, given.message)
    message = message_of(replace(given.message, scheduled_enqueue_time_ms=None))
    return SentOut(await call.bus.schedule(call.entity, message, given.due_ms))


async def cancel_scheduled(call: Call) -> None:
    await call.bus.cancel_scheduled(call.entity, call.decode(MessageNumbers).numbers)


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
        summary="Send messages atomically.",
        right=Right.SEND,
        fast=send_batch,
        takes=Batch,
        takes_arrow=True,
        gives=SentBatchOut,
        gives_arrow=True,
        tag="messages",
    ),
    Route(
        method="POST",
        path=f"{_AT}/schedule",
        summary="Schedule a message; its sequence number cancels it.",
        right=Right.SEND,
        handler=schedule,
        takes=Schedule,
        gives=SentOut,
        tag="messages",
    ),
    Route(
        method="POST",
        path=f"{_AT}/cancel-scheduled",
        summary="Cancel scheduled messages atomically.",
        right=Right.SEND,
        handler=cancel_scheduled,
        takes=MessageNumbers,
        tag="messages",
    ),
]
