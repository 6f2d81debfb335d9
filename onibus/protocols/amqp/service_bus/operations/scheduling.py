"""Messages for later: scheduling and cancelling them, and receiving deferred ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from onibus.core.errors import InvalidArgument, MessageNotFound
from onibus.core.message import Message, ReceivedMessage, Sent
from onibus.directory import routing
from onibus.gateway import sending, settling
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus.incoming import read_message
from onibus.protocols.amqp.service_bus.operations.operation import Operation, numbers_of
from onibus.protocols.amqp.service_bus.requests import Request
from onibus.security.rights import Right

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.management import ManagementNode

#: Bytes of messages in one response.
_ANSWER_BYTES_MAX = 64 << 20


#: Messages that one request schedules: they are read in one slice.
SCHEDULED_MAX = 1_000


def schedule(node: ManagementNode, request: Request) -> None:
    """Store messages for the moments that their annotations name.

    In a bus transaction they have no sequence numbers yet: the response has 0 for each.
    """
    entries = request.argument("messages", list)
    if not 0 < len(entries) <= SCHEDULED_MAX:
        raise InvalidArgument(f"messages must be a list of 1 to {SCHEDULED_MAX}")
    settings = routing.open_for_sends(node.broker, node.place.entity).log_settings
    profile = node.profile
    check = partial(profile.check_message, settings=settings)
    messages = [_scheduled(entry, check) for entry in entries]
    for message in messages:
        profile.check_fields(message)
    if len(entries) > 1:
        profile.check_batch(sum(len(entry["message"]) for entry in entries), settings)

    transaction = node.transaction_of(request)
    if transaction is not None:
        transaction.send(node.place.entity, messages)
        node.say(request, 200, body=_numbers(0 for _ in messages))
        return

    def told(sent: list[Sent]) -> bytes:
        return _numbers(one.sequence_number for one in sent)

    node.ask(
        request,
        lambda reply: sending.send(
            node.broker, node.place.entity, messages, reply, strict=profile.strict_batches
        ),
        told,
    )


def _numbers(numbers: Iterable[int]) -> bytes:
    return to.text_map({"sequence-numbers": to.longs(numbers)})


def _scheduled(entry: Any, check: Callable[[int], None]) -> Message:
    content = entry.get("message") if isinstance(entry, dict) else None
    if not isinstance(content, bytes):
        raise InvalidArgument("each of messages must have an encoded message")
    check(len(content))
    message = read_message(content)
    if message.scheduled_enqueue_time_ms is None:
        raise InvalidArgument("a scheduled message must have an enqueue time")
    return message


def cancel(node: ManagementNode, request: Request) -> None:
    """Delete scheduled messages atomically."""
    numbers = numbers_of(request)
    node.ask(
        request,
        lambda reply: settling.cancel_scheduled(node.broker, node.place.entity, numbers, reply),
    )


def receive_deferred(node: ManagementNode, request: Request) -> None:
    """Receive deferred messages by their sequence numbers, atomically."""
    numbers = numbers_of(request)
    if node.place.transfer:
        raise MessageNotFound("the transfer dead-letter queue is always empty")
    mode = request.body.get("receiver-settle-mode")
    session = node.session_held(request)
    node.ask(
        request,
        lambda reply: settling.receive_deferred(
            node.broker,
            node.place.entity,
            numbers,
            reply,
            dead=node.place.dead,
            take=mode == 0,
            session=session,
            bytes_max=_ANSWER_BYTES_MAX,
        ),
        partial(_messages, node.write),
    )


def _messages(write: Callable[[ReceivedMessage], bytes], received: list[ReceivedMessage]) -> bytes:
    told = []
    for one in received:
        entry = {"message": to.binary(write(one))}
        if one.token is not None:
            entry["lock-token"] = to.uuid(UUID(bytes=one.token))
        told.append(to.text_map(entry))
    return to.text_map({"messages": to.list_(told)})


OPERATIONS = {
    "com.microsoft:schedule-message": Operation(Right.SEND, schedule, True),
    "com.microsoft:cancel-scheduled-message": Operation(Right.SEND, cancel),
    "com.microsoft:receive-by-sequence-number": Operation(Right.LISTEN, receive_deferred),
}
