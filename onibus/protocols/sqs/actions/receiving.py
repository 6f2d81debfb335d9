"""Receiving visible messages, with long polling for the first one."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from onibus.core.errors import InvalidOperation, QuotaExceeded
from onibus.core.message import ReceivedMessage
from onibus.directory.entity import Entity, Waiter
from onibus.gateway import receiving
from onibus.protocols.sqs import errors, large_bodies
from onibus.protocols.sqs.actions import naming
from onibus.protocols.sqs.actions.checking import check_between, check_id
from onibus.protocols.sqs.call import Action, SqsCall
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.large_bodies import PIECE_BYTES
from onibus.protocols.sqs.messages import (
    SOURCE_PROPERTY,
    Shown,
    WantedAttributes,
    is_dead_letter,
    shown,
)
from onibus.protocols.sqs.queue_attributes import IN_FLIGHT_MAX, visibility_ms, wait_ms
from onibus.protocols.sqs.queues import settings_of
from onibus.protocols.sqs.shapes import ReceiveIn, ReceiveOut
from onibus.security.rights import Right

#: The response to a FIFO receive has its attempt id, given or made here (F9).
ATTEMPT_HEADER = "x-onibus-attempt-id"
_SYSTEM = frozenset(
    {
        "All",
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
    }
)
#: How long a short poll waits for a dead-lettered message that is on its way to its queue.
ARRIVAL_MS = 1_000
_NOTHING_MORE = WantedAttributes((), ())


def receive_message(call: SqsCall, given: ReceiveIn) -> None:
    """Deliver messages, and hide them from other receivers for a while."""
    entity = call.queues.by_url(given.queue_url)
    settings = settings_of(entity)
    limit = 1 if given.max_number_of_messages is None else given.max_number_of_messages
    between = "Must be between 1 and 10, if provided."
    check_between("MaxNumberOfMessages", limit, 1, 10, between)
    waiting = wait_ms(settings)
    if given.wait_time_seconds is not None:
        check_between("WaitTimeSeconds", given.wait_time_seconds, 0, 20)
        waiting = given.wait_time_seconds * 1_000
    if not waiting and call.bus.broker.forwarding.brings_to(entity.name):
        waiting = ARRIVAL_MS
    hidden = visibility_ms(settings)
    if given.visibility_timeout is not None:
        check_between("VisibilityTimeout", given.visibility_timeout, 0, 43_200)
        hidden = given.visibility_timeout * 1_000
    if given.receive_request_attempt_id is not None:
        check_id("ReceiveRequestAttemptId", given.receive_request_attempt_id)
    told = partial(_told, call, entity, _wanted(given))
    if settings.fifo:
        attempt_id = given.receive_request_attempt_id or os.urandom(16).hex()
        call.headers = ((ATTEMPT_HEADER, attempt_id),)
        command = partial(_from_fifo, call, entity, limit, waiting, hidden, attempt_id)
        call.ask(command, told, partial(_spent, attempt_id))
        return
    if settings.requires_session:
        text = "The queue has sessions: it is received from by clients that lock a session."
        raise SqsError(errors.UNSUPPORTED, text)
    call.ask(partial(_from_standard, call, entity, limit, waiting, hidden), told, _over_limit)


def _wanted(given: ReceiveIn) -> WantedAttributes:
    system = [*(given.attribute_names or ()), *(given.message_system_attribute_names or ())]
    if not system and not given.message_attribute_names:
        return _NOTHING_MORE
    for name in system:
        if name not in _SYSTEM:
            raise SqsError(errors.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
    return WantedAttributes(system, given.message_attribute_names or ())


def _from_fifo(
    call: SqsCall,
    entity: Entity,
    limit: int,
    waiting: int,
    hidden: int,
    attempt_id: str,
    reply: Any,
) -> Waiter | None:
    return receiving.receive_fifo(
        call.bus.broker,
        entity.name,
        limit,
        waiting,
        reply,
        visibility_ms=hidden,
        attempt_id=attempt_id,
        held_max=IN_FLIGHT_MAX,
        bytes_max=call.app.answer_bytes_max,
    )


def _from_standard(
    call: SqsCall, entity: Entity, limit: int, waiting: int, hidden: int, reply: Any
) -> Waiter | None:
    return receiving.receive(
        call.bus.broker,
        entity.name,
        limit,
        waiting,
        reply,
        visibility_ms=hidden,
        held_max=IN_FLIGHT_MAX,
        bytes_max=call.app.answer_bytes_max,
    )


def _over_limit(error: BaseException) -> BaseException:
    if isinstance(error, QuotaExceeded):
        return SqsError(errors.OVER_LIMIT, f"Too many messages in flight: {IN_FLIGHT_MAX}.")
    return error


def _spent(attempt_id: str, error: BaseException) -> BaseException:
    """Return the error for an attempt id whose messages changed, if the queue is strict (F9)."""
    if isinstance(error, InvalidOperation):
        return errors.invalid(
            "ReceiveRequestAttemptId",
            attempt_id,
            "The receiveRequestAttemptId is not valid anymore since the receive call is not "
            "retryable.",
        )
    return error


def _told(
    call: SqsCall, entity: Entity, wanted: WantedAttributes, received: list[ReceivedMessage]
) -> Any:
    fifo = settings_of(entity).fifo
    queue = Shown(entity.incarnation, call.queues.account, call.app.digests, fifo=fifo)
    if sum([len(one.message.body) for one in received]) > PIECE_BYTES:
        return _told_in_slices(call, queue, wanted, received)
    messages = []
    for one in received:
        source = _source(call, one) if one.message.properties else None
        messages.append(shown(one, queue, wanted, source))
    return ReceiveOut(messages=messages)


async def _told_in_slices(
    call: SqsCall, queue: Shown, wanted: WantedAttributes, received: list[ReceivedMessage]
) -> ReceiveOut:
    """Return large messages, with marks for their bodies."""
    call.bodies = [await large_bodies.read(one.message.body) for one in received]
    messages = []
    for one, body in zip(received, call.bodies, strict=True):
        source = _source(call, one) if one.message.properties else None
        about = (body.mark, body.digest, body.encoded)
        messages.append(shown(one, queue, wanted, source, about))
    return ReceiveOut(messages=messages)


def _source(call: SqsCall, received: ReceivedMessage) -> str | None:
    """Return the ARN of the queue that dead-lettered a message."""
    if not is_dead_letter(received.message):
        return None
    name = str(received.message.properties[SOURCE_PROPERTY])
    queue = call.queues
    entity = call.bus.broker.namespace.entities.get(name)
    if entity is None:
        return f"{queue.profile.arn}:{call.region}:{queue.account}:{name}"
    return call.arn(entity)


ACTIONS: dict[str, Action] = {
    "ReceiveMessage": Action(
        takes=ReceiveIn, rights=(Right.LISTEN,), entity=naming.by_url, fast=receive_message
    ),
}
