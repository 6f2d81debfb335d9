"""SQS messages ↔ messages of the bus.

    body                     body, as UTF-8
    MessageGroupId           session_id
    MessageDeduplicationId   message_id, on a FIFO queue
    MessageId                message_id, on other queues; on FIFO queues derived from the queue and
                             the sequence number, so that a duplicate gets that of the first
    message attributes       properties: String a string, Binary bytes, Number a number if that
                             has the same spelling, else a string
    AWSTraceHeader           the property AWS.TraceHeader

The property AWS.Types keeps data types that a value does not show (Number with another spelling,
custom labels). Names that begin with AWS. are reserved, so user properties cannot clash with it.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Collection
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from math import isfinite
from typing import Any

import msgspec

from onibus.core.message import Message, ReceivedMessage
from onibus.protocols.sqs import handles
from onibus.protocols.sqs.md5 import Digests, of_attributes, of_body
from onibus.protocols.sqs.shapes import Attributes, MessageAttribute, MessageOut

TRACE = "AWSTraceHeader"
_TRACE_PROPERTY = "AWS.TraceHeader"
_TYPES_PROPERTY = "AWS.Types"
#: Properties that the bus adds to a forwarded dead-lettered message; otherwise ordinary names.
SOURCE_PROPERTY = "DeadLetterSource"
DEAD_LETTER_PROPERTIES = frozenset(
    {"DeadLetterReason", "DeadLetterErrorDescription", SOURCE_PROPERTY, "DeadLetterSourceId"}
)
_OURS = frozenset({_TRACE_PROPERTY, _TYPES_PROPERTY})
#: Marks a body that was not a string and is therefore in base64.
ENCODING = "Onibus.Encoding"

#: Characters that a body cannot have: controls except tab and line ends, U+FFFE and U+FFFF.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r"))
_NO_CHARACTERS = ("\ufffe".encode(), "\uffff".encode())
#: How many bits of a number are written in its MessageId.
_ID_BITS = 48


def carried(text: str) -> bytes | None:
    """Return a string as UTF-8; None if it has characters that SQS does not carry."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return None
    return None if has_forbidden(data) else data


def has_forbidden(data: bytes) -> bool:
    """Return whether a UTF-8 string has characters that SQS does not carry."""
    # Far faster than to search for them.
    if len(data.translate(None, _CONTROLS)) != len(data):
        return True
    return not data.isascii() and any(one in data for one in _NO_CHARACTERS)


def message_id_of(incarnation: int, number: int) -> str:
    """Return the MessageId of a FIFO message: always the same for the same message."""
    return f"{_id_of_queue(incarnation, number >> _ID_BITS)}-{number % (1 << _ID_BITS):012x}"


@lru_cache(1_024)
def _id_of_queue(incarnation: int, high: int) -> str:
    """Return what the MessageIds of a queue begin with."""
    seed = b"%d/%d" % (incarnation, high)
    text = blake2b(seed, digest_size=10, person=b"onibus sqs").hexdigest()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:]}"


def new_id() -> str:
    """Return the MessageId of a new message of another queue."""
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def sequence_of(number: int) -> str:
    """Return a sequence number as FIFO queues tell it."""
    return str(number).zfill(20)


def properties_of(attributes: Attributes | None, trace: str | None) -> dict[str, Any]:
    """Return the properties that stand for message attributes."""
    properties: dict[str, Any] = {}
    types: dict[str, str] = {}
    for name, attribute in (attributes or {}).items():
        kind = attribute.data_type or ""
        value: Any = attribute.binary_value
        if value is None:
            text = attribute.string_value or ""
            value = _number_of(text) if kind.startswith("Number") else text
        properties[name] = value
        if kind != _type_of(value):
            types[name] = kind
    if trace is not None:
        properties[_TRACE_PROPERTY] = trace
    if types:
        properties[_TYPES_PROPERTY] = msgspec.json.encode(types).decode()
    return properties


def _number_of(text: str) -> int | float | str:
    """Return a number, if its spelling stays the same."""
    if len(text) > 24:
        return text
    try:
        whole = int(text)
        if str(whole) == text and -(2**63) <= whole < 2**63:
            return whole
        real = float(text)
    except ValueError:
        try:
            real = float(text)
        except ValueError:
            return text
    return real if repr(real) == text else text


def _type_of(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return "Binary"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # NaN and infinity cannot be an SQS Number.
        return "Number" if isfinite(value) else "String"
    return "String"


def is_dead_letter(message: Message) -> bool:
    """Return whether the bus forwarded this message from the dead-letter queue of another queue.

    Properties alone prove nothing: any sender can write them.
    """
    source = message.properties.get(SOURCE_PROPERTY)
    return message.dead_letter_of is not None and isinstance(source, str)


def attributes_of(message: Message) -> Attributes:
    """Return the message attributes that a message's properties stand for."""
    properties = message.properties
    ours = _OURS | DEAD_LETTER_PROPERTIES if is_dead_letter(message) else _OURS
    text = properties.get(_TYPES_PROPERTY)
    types: dict[str, str] = {}
    if isinstance(text, str):
        try:
            types = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.DecodeError:
            # Another sender's property of that name.
            types = {}
    found: Attributes = {}
    for name, value in properties.items():
        if name not in ours and value is not None:
            found[name] = _attribute(value, types.get(name))
    return found


def _attribute(value: Any, kind: str | None) -> MessageAttribute:
    if isinstance(value, bytes):
        return MessageAttribute(binary_value=value, data_type=kind or "Binary")
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, datetime):
        text = value.isoformat()
    else:
        text = value if isinstance(value, str) else repr(value)
        if carried(text) is None:
            # As a string no client could read it, and the Query protocol could not even write it.
            data = text.encode("utf-8", "surrogatepass")
            return MessageAttribute(binary_value=data, data_type="Binary")
    return MessageAttribute(string_value=text, data_type=kind or _type_of(value))


def body_of(message: Message) -> tuple[bytes, str, bool]:
    """Return a body as a string, and whether that is its base64."""
    body = message.body
    if not has_forbidden(body):
        try:
            return body, body.decode(), False
        except UnicodeDecodeError:
            # Not a string: it is encoded, too.
            pass
    data = b64encode(body)
    return data, data.decode(), True


class WantedAttributes:
    """Which attributes a receiver asks for."""

    def __init__(self, system: Collection[str], names: Collection[str]) -> None:
        self.all_system = "All" in system
        self.system = frozenset(system)
        self.any = bool(names)
        self._all = not {"All", ".*", "*"}.isdisjoint(names)
        self._names = frozenset(names)
        self._prefixes = tuple(name[:-2] for name in names if name.endswith(".*") and name != ".*")

    def takes(self, name: str) -> bool:
        """Return whether the client requests a message attribute."""
        return self._all or name in self._names or name.startswith(self._prefixes or ("\0",))


class Shown:
    """The facts about a queue that are needed to show its messages."""

    def __init__(self, incarnation: int, account: str, digests: Digests, *, fifo: bool) -> None:
        self.incarnation = incarnation
        self.account = account
        self.digests = digests
        self.fifo = fifo
        #: what its receipt handles begin with
        self.handle = handles.beginning(incarnation)


def shown(
    received: ReceivedMessage,
    queue: Shown,
    wanted: WantedAttributes,
    source_arn: str | None,
    body: tuple[str, str, bool] | None = None,
) -> MessageOut:
    """Return a message as its receiver gets it.

    `body` is what stands for its body, the body's digest, and whether it is in base64.
    """
    message = received.message
    assert received.token is not None
    digest = queue.digests.find(queue.incarnation, received.sequence_number)
    if body is not None:
        text, digest, encoded = body
    elif digest is not None:
        text, encoded = message.body.decode(), False
    else:
        data, text, encoded = body_of(message)
        digest = of_body(data)
    if queue.fifo and message.dead_letter_of is None:
        message_id = message_id_of(queue.incarnation, received.sequence_number)
    else:
        message_id = identity(received, queue)
    out = MessageOut(
        message_id=message_id,
        receipt_handle=queue.handle + received.token.hex(),
        body_md5=digest,
        body=text,
    )
    if wanted.system:
        system = _system(received, queue, source_arn)
        out.attributes = {
            name: value
            for name, value in system.items()
            if wanted.all_system or name in wanted.system
        }
    if wanted.any and (message.properties or encoded):
        attributes = attributes_of(message)
        if encoded:
            attributes[ENCODING] = MessageAttribute(string_value="base64", data_type="String")
        chosen = {name: one for name, one in attributes.items() if wanted.takes(name)}
        out.message_attributes = chosen
        out.attributes_md5 = of_attributes(chosen)
    return out


def identity(received: ReceivedMessage, queue: Shown) -> str:
    """Return the MessageId of a message that was received."""
    message = received.message
    if message.message_id is not None and not queue.fifo:
        return message.message_id
    if message.dead_letter_of is not None:
        # A dead-lettered message keeps the one of its first entity, however far it is forwarded.
        return message_id_of(*message.dead_letter_of)
    return message_id_of(queue.incarnation, received.sequence_number)


def _system(received: ReceivedMessage, queue: Shown, source_arn: str | None) -> dict[str, str]:
    message = received.message
    found = {
        "SenderId": queue.account,
        "SentTimestamp": str(received.enqueued_time_ms),
        "ApproximateReceiveCount": str(message.received_before + received.delivery_count + 1),
    }
    if received.first_received_ms is not None:
        found["ApproximateFirstReceiveTimestamp"] = str(received.first_received_ms)
    if message.session_id is not None:
        found["MessageGroupId"] = message.session_id
    if queue.fifo:
        found["SequenceNumber"] = sequence_of(received.sequence_number)
        if message.message_id is not None:
            found["MessageDeduplicationId"] = message.message_id
    trace = message.properties.get(_TRACE_PROPERTY)
    if isinstance(trace, str):
        found[TRACE] = trace
    if source_arn is not None:
        found["DeadLetterQueueSourceArn"] = source_arn
    return found
