"""Ids for messages that were sent without one.

Service Bus gives every message an id; clients of JavaScript cannot close a receiver of messages
that have none. The id is new, so it is nobody's duplicate. Where a message's id would choose its
partition and its sender gave neither, the broker refuses it (D11): that is not hidden here.
"""

from __future__ import annotations

from uuid import uuid4

from onibus.broker.entity import Entity
from onibus.core.message import Message
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.sections import APPLICATION_PROPERTIES, PROPERTIES


def needs_key(entity: Entity) -> bool:
    """Tell whether a message without a key of its own is refused where it has no id."""
    settings = entity.log_settings
    return settings.requires_duplicate_detection and settings.enable_partitioning


def name_message(message: Message, needs_key: bool) -> None:
    """Give a message that has no id a new one, also among what is kept as it was sent."""
    if needs_key and message.session_id is None and message.partition_key is None:
        return
    message.message_id = uuid4().hex
    sent = message.as_sent
    rare: list[bytes] = []
    others: list[bytes] = []
    application = b""
    for code, start, value, end in sections.split(sent):
        if code == PROPERTIES:
            others = sections.elements(sent, value)[1:]
        elif code == APPLICATION_PROPERTIES:
            application = sent[start:end]
        else:
            rare.append(sent[start:end])
    properties = to.list_([to.string(message.message_id), *others])
    message.as_sent = b"".join((*rare, sections.section(PROPERTIES, properties), application))
