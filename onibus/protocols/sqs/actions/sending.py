"""Sending: one message, or up to ten that succeed or fail separately."""

from __future__ import annotations

import re
from collections.abc import Sequence

from onibus.core.message import Message, Sent
from onibus.core.settings import QueueSettings
from onibus.directory import routing
from onibus.directory.entity import Entity
from onibus.gateway import sending
from onibus.protocols.sqs import errors, md5
from onibus.protocols.sqs.actions import naming
from onibus.protocols.sqs.actions.checking import (
    check_between,
    check_entries,
    check_id,
    failed,
    is_id,
)
from onibus.protocols.sqs.call import Action, SqsCall, SqsResponse
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.json_protocol import has_plain_texts
from onibus.protocols.sqs.messages import (
    TRACE,
    carried,
    message_id_of,
    new_id,
    properties_of,
    sequence_of,
)
from onibus.protocols.sqs.profile import Profile
from onibus.protocols.sqs.queue_attributes import message_bytes_max
from onibus.protocols.sqs.queues import settings_of
from onibus.protocols.sqs.shapes import (
    Attributes,
    FailedEntry,
    MessageAttribute,
    Ready,
    SendBatchIn,
    SendBatchOut,
    SendEntry,
    SendIn,
    SentEntry,
)
from onibus.security.rights import Right

ATTRIBUTES_MAX = 10
_ENTRY = "SendMessageBatchRequestEntry"
_TRACE_HEADER = "x-amzn-trace-id"

#: Latin letters with marks are letters too, as AWS has it.
_ATTRIBUTE_NAME = re.compile(
    r"(?!(?i:AWS|Amazon)\.)(?!\.)(?!.*\.\.)[A-Za-z0-9\u00c0-\u017f_.-]{1,256}(?<!\.)"
)
_DATA_TYPE = re.compile(r"(?:String|Number|Binary)(?:\..{1,240})?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,5})?", re.ASCII)
_NOT_FOR_THIS_TYPE = "The request include parameter that is not valid for this queue type."
_NO_GROUP = "The request must contain the parameter MessageGroupId."
_NO_ID = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId "
    "provided explicitly"
)


class TooLong(SqsError):
    """A message is larger than its queue takes."""


def ready(
    given: SendIn,
    settings: QueueSettings,
    largest: int,
    plain: bool = False,
    traced: str | None = None,
) -> Ready:
    """Return a message that can be sent, of at most `largest` bytes, or reject it.

    `plain`: its strings are known to have nothing that SQS does not carry. `traced`: the trace
    header of the request, for a message without its own.
    """
    text = given.message_body
    if not text:
        raise errors.missing("MessageBody")
    body = text.encode() if plain else carried(text)
    if body is None:
        raise SqsError(
            errors.INVALID_CONTENTS,
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to "
            "#xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
        )
    group, identity, fifo = given.message_group_id, given.message_deduplication_id, settings.fifo
    if group is not None and not is_id(group):
        check_id("MessageGroupId", group)
    if identity is None:
        if not fifo:
            identity = new_id()
    elif not fifo:
        raise errors.invalid("MessageDeduplicationId", identity, _NOT_FOR_THIS_TYPE)
    elif not is_id(identity):
        check_id("MessageDeduplicationId", identity)
    seconds = given.delay_seconds
    delay_ms = None if seconds is None else _delay(seconds, settings)
    message = Message(body=body, message_id=identity, session_id=group)
    size = len(body)
    more = given.message_attributes or given.message_system_attributes
    if more:
        size += _check_attributes(given.message_attributes or {})
        trace = _trace(given.message_system_attributes) or traced
        message.properties = properties_of(given.message_attributes, trace)
    elif traced is not None:
        message.properties = properties_of(None, traced)
    if size > largest:
        raise TooLong(errors.INVALID_PARAMETER, f"Message must be shorter than {largest} bytes.")
    prepared = Ready(message, delay_ms, size, md5.of_body(body))
    if more:
        prepared.attributes_md5 = md5.of_attributes(given.message_attributes or {})
        prepared.system_md5 = md5.of_attributes(given.message_system_attributes or {})
    return prepared


def _delay(seconds: int, settings: QueueSettings) -> int | None:
    check_between("DelaySeconds", seconds, 0, 900, "DelaySeconds must be >= 0 and <= 900.")
    if not settings.fifo:
        return seconds * 1_000
    if seconds:
        raise errors.invalid("DelaySeconds", seconds, _NOT_FOR_THIS_TYPE)
    # Zero is tolerated, and means what the queue says.
    return None


def _check_attributes(attributes: Attributes) -> int:
    """Reject invalid attributes; return what they count towards the size."""
    if len(attributes) > ATTRIBUTES_MAX:
        text = (
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum "
            f"[{ATTRIBUTES_MAX}]."
        )
        raise SqsError(errors.INVALID_PARAMETER, text)
    return sum(_check_attribute(name, one) for name, one in attributes.items())


def _check_attribute(name: str, attribute: MessageAttribute) -> int:
    if not _ATTRIBUTE_NAME.fullmatch(name):
        raise SqsError(
            errors.INVALID_PARAMETER,
            f"The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, "
            "0-9, underscore (_), hyphen (-), and period (.) characters.",
        )
    kind = attribute.data_type
    if not kind:
        raise SqsError(
            errors.INVALID_PARAMETER,
            f"The message attribute '{name}' must contain non-empty message attribute type.",
        )
    if not _DATA_TYPE.fullmatch(kind):
        raise SqsError(
            errors.INVALID_PARAMETER,
            f"The message attribute '{name}' has an invalid message attribute type, the set of "
            "supported type prefixes is Binary, Number, and String.",
        )
    base = kind.partition(".")[0]
    text, data = attribute.string_value, attribute.binary_value
    wrong = bool(text) if base == "Binary" else bool(data)
    if wrong or not (data if base == "Binary" else text):
        raise SqsError(
            errors.INVALID_PARAMETER,
            f"Message (user) attribute '{name}' must contain a non-empty value of type '{base}'.",
        )
    if base == "Number" and not _NUMBER.fullmatch(text or ""):
        raise SqsError(
            errors.INVALID_PARAMETER,
            f"Can't cast the value of message (user) attribute '{name}' to a number.",
        )
    if text and carried(text) is None:
        raise SqsError(
            errors.INVALID_PARAMETER,
            f"Invalid characters found in the value of message (user) attribute '{name}'.",
        )
    size = len(data) if data else len((text or "").encode())
    return len(name.encode()) + len(kind.encode()) + size


def _trace(attributes: Attributes | None) -> str | None:
    if not attributes:
        return None
    for name, attribute in attributes.items():
        if name != TRACE or attribute.data_type != "String" or not attribute.string_value:
            raise SqsError(
                errors.INVALID_PARAMETER,
                f"Message system attribute '{name}' is invalid: only {TRACE}, of type String.",
            )
        if carried(attribute.string_value) is None:
            raise errors.invalid(name, "", "Invalid characters found.")
    return attributes[TRACE].string_value


def _trace_of(call: SqsCall) -> str | None:
    """Return the trace header of a request, if a message can carry it."""
    traced = call.request.head.headers.get(_TRACE_HEADER)
    return traced if traced and carried(traced) is not None else None


def _check_complete(given: SendIn, settings: QueueSettings, profile: Profile) -> SqsError | None:
    """Return what a message to a FIFO queue lacks, if it does."""
    if not settings.requires_session:
        return None
    if not given.message_group_id and given.message_group_id is None:
        if profile.refuses_whole_batches:
            return SqsError(errors.MISSING_PARAMETER, _NO_GROUP)
        return SqsError(errors.MISSING_PARAMETER, "No MessageGroupId parameter.")
    if given.message_deduplication_id is None and settings.fifo:
        if settings.content_based_deduplication:
            return None
        if profile.refuses_whole_batches:
            return SqsError(errors.INVALID_PARAMETER, _NO_ID)
        return SqsError(errors.MISSING_PARAMETER, "No MessageDeduplicationId parameter.")
    return None


def send_message(call: SqsCall, given: SendIn) -> None:
    """Store one message."""
    entity = call.queues.by_url(given.queue_url)
    settings, profile = settings_of(entity), call.queues.profile
    if given.message_group_id is None or given.message_deduplication_id is None:
        lacking = _check_complete(given, settings, profile)
        if lacking is not None:
            raise lacking
    largest, plain = message_bytes_max(settings, profile), has_plain_texts(call.request)
    try:
        prepared = ready(given, settings, largest, plain, _trace_of(call))
    except TooLong as error:
        text = f"One or more parameters are invalid. Reason: {error.text}"
        raise SqsError(error.kind, text) from None
    delay_ms = _scheduled(call, entity, prepared) if prepared.delay_ms else prepared.delay_ms
    reply = SqsResponse(call, lambda sent: _told(call.app.digests, entity, prepared, sent[0]))
    bus = call.bus
    bus.check_alive()
    routing.check_takes(entity)
    sending.send_one_to(bus.broker, entity, prepared.message, reply, delay_ms)


def _scheduled(call: SqsCall, entity: Entity, prepared: Ready) -> int | None:
    """Return a message's delay; over several partitions it is scheduled instead."""
    if prepared.delay_ms and len(entity.partitions) > 1:
        due = call.bus.broker.clock.moment() + prepared.delay_ms
        prepared.message.scheduled_enqueue_time_ms = due
        return None
    return prepared.delay_ms


def _told(
    digests: md5.Digests, entity: Entity, prepared: Ready, sent: Sent, entry_id: str | None = None
) -> SentEntry:
    """Return the response entry for the sender of a message."""
    number, incarnation, digest = sent.sequence_number, entity.incarnation, prepared.body_md5
    if sent.duplicate_of is None:
        digests.note(incarnation, number, digest)
    fifo = settings_of(entity).fifo
    return SentEntry(
        body_md5=digest,
        attributes_md5=prepared.attributes_md5,
        system_md5=prepared.system_md5,
        message_id=message_id_of(incarnation, number) if fifo else prepared.message.message_id,
        sequence_number=sequence_of(number) if fifo else None,
        id=entry_id,
    )


def send_batch(call: SqsCall, given: SendBatchIn) -> None:
    """Store up to ten messages, in their order; rejected ones do not stop the others."""
    entity = call.queues.by_url(given.queue_url)
    entries: Sequence[SendEntry] = check_entries(given.entries, _ENTRY)
    settings, profile = settings_of(entity), call.queues.profile
    largest, plain = message_bytes_max(settings, profile), has_plain_texts(call.request)
    traced = _trace_of(call)
    refused: list[FailedEntry] = []
    good: list[tuple[SendEntry, Ready]] = []
    size = 0
    for entry in entries:
        lacking = None
        if entry.message_group_id is None or entry.message_deduplication_id is None:
            lacking = _check_complete(entry, settings, profile)
        if lacking is not None and profile.refuses_whole_batches:
            raise SqsError(errors.INVALID_PARAMETER, lacking.text)
        try:
            if lacking is not None:
                raise lacking
            prepared = ready(entry, settings, largest, plain, traced)
        except TooLong as long:
            size += len((entry.message_body or "").encode("utf-8", "replace"))
            text = f"One or more parameters cannot be validated. Reason: {long.text}"
            refused.append(failed(entry.id, long.kind, text))
        except SqsError as error:
            refused.append(failed(entry.id, error.kind, error.text))
        else:
            size += prepared.size
            good.append((entry, prepared))
    if size > profile.message_bytes_max:
        raise SqsError(
            errors.BATCH_TOO_LONG,
            f"Batch requests cannot be longer than {profile.message_bytes_max} bytes. "
            f"You have sent {size} bytes.",
        )
    if not good:
        call.answer(SendBatchOut(failed=refused))
        return
    _send_all(call, entity, good, refused)


def _send_all(
    call: SqsCall, entity: Entity, good: list[tuple[SendEntry, Ready]], refused: list[FailedEntry]
) -> None:
    messages = [prepared.message for _, prepared in good]
    delays: list[int | None] | None = None
    if [prepared.delay_ms for _, prepared in good].count(None) != len(good):
        delays = [_scheduled(call, entity, one) for _, one in good]
        if len(entity.partitions) > 1:
            delays = None

    def told(sent: list[Sent]) -> SendBatchOut:
        digests = call.app.digests
        successful = [
            _told(digests, entity, prepared, one, entry.id)
            for (entry, prepared), one in zip(good, sent, strict=True)
        ]
        return SendBatchOut(successful=successful, failed=refused)

    bus = call.bus
    bus.check_alive()
    sending.send(bus.broker, entity.name, messages, SqsResponse(call, told), delays)


ACTIONS: dict[str, Action] = {
    "SendMessage": Action(
        takes=SendIn, rights=(Right.SEND,), entity=naming.by_url, fast=send_message
    ),
    "SendMessageBatch": Action(
        takes=SendBatchIn, rights=(Right.SEND,), entity=naming.by_url, fast=send_batch
    ),
}
