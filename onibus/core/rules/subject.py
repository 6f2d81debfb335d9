"""The subject of a rule: a message with its stamps, and the names of its properties.

Names of properties are compared without case. The rule's own spelling is tried first, so that the
usual message costs one lookup; only then are the message's names folded, once for all rules. If
names of a message differ only by case, the exact one is taken, or else the first.

A subject also counts the steps of the rule that runs. A step is about a tenth of a microsecond: a
character that LIKE compares one by one, `SCANNED` characters that are compared or searched at once,
`FOLDED` characters compared without case, or the name of a property. A rule that takes more than
`RULE_STEPS_MAX` fails on the message (B3). Steps are counted, never timed, so that every broker
decides alike.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from onibus.core.errors import FilterFailed
from onibus.core.limits import RULE_STEPS_MAX
from onibus.core.message import Message, ReceivedMessage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)

#: Characters per step: of strings that are compared or searched at once, and whose case is ignored.
SCANNED, FOLDED = 64, 16

#: Stands for a property that is not there, where None is one that is NULL.
MISSING: Any = object()


class Subject:
    """A message, as far as rules can see it. Stamps that it does not have yet are None."""

    __slots__ = (
        "_folded",
        "delivery_count",
        "enqueued_time_ms",
        "expires_at_ms",
        "message",
        "properties",
        "sequence_number",
        "steps",
    )

    def __init__(
        self,
        message: Message,
        sequence_number: int | None = None,
        enqueued_time_ms: int | None = None,
        *,
        delivery_count: int = 0,
        expires_at_ms: int | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        self.message = message
        self.sequence_number = sequence_number
        self.enqueued_time_ms = enqueued_time_ms
        self.delivery_count = delivery_count
        self.expires_at_ms = expires_at_ms
        self.properties = message.properties if properties is None else properties
        self._folded: dict[str, Any] | None = None
        #: steps of the rule that runs; a rule that can take many starts at 0
        self.steps = 0

    def charge(self, steps: int) -> None:
        """Count steps of the rule that runs; fail if it takes too many."""
        self.steps += steps
        if self.steps > RULE_STEPS_MAX:
            raise FilterFailed(
                f"the rule takes more than {RULE_STEPS_MAX} steps on this message: shorten the "
                "properties that it compares"
            )

    def property(self, name: str, folded: str) -> Any:
        """Return the value of a user property, or MISSING."""
        value = self.properties.get(name, MISSING)
        return self.by_folded(folded) if value is MISSING else value

    def by_folded(self, folded: str) -> Any:
        """Return the value of a user property that is not there by its exact name, or MISSING."""
        names = self._folded
        if names is None:
            # Once for all rules of a message, so no rule is charged for it.
            names = self._folded = {}
            for name, value in self.properties.items():
                names.setdefault(name.casefold(), value)
        return names.get(folded, MISSING)

    def changed(self) -> None:
        """Read the properties again: they were changed."""
        self.charge(len(self.properties))
        self._folded = None

    def with_message(self, message: Message) -> Subject:
        """Return the same stamps with another message."""
        return Subject(
            message,
            self.sequence_number,
            self.enqueued_time_ms,
            delivery_count=self.delivery_count,
            expires_at_ms=self.expires_at_ms,
        )


def subject_of(received: ReceivedMessage) -> Subject:
    """Return the subject of a received or peeked message, with its dead-letter reason."""
    properties = received.message.properties
    if received.dead_letter_reason is not None:
        properties = properties | {
            "DeadLetterReason": received.dead_letter_reason,
            "DeadLetterErrorDescription": received.dead_letter_description,
        }
    return Subject(
        received.message,
        received.sequence_number,
        received.enqueued_time_ms,
        delivery_count=received.delivery_count,
        expires_at_ms=received.expires_at_ms,
        properties=properties,
    )


def time_of(milliseconds: int | None) -> datetime | None:
    """Return a stamp as a time; a stamp after the year 9999 is the last moment of that year."""
    if milliseconds is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return _LAST


def _time_to_live(subject: Subject) -> timedelta | None:
    milliseconds = subject.message.time_to_live_ms
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


#: The string system properties, by folded names, and their fields of Message.
TEXT_FIELDS = {
    "contenttype": "content_type",
    "correlationid": "correlation_id",
    "label": "subject",
    "messageid": "message_id",
    "partitionkey": "partition_key",
    "replyto": "reply_to",
    "replytosessionid": "reply_to_session_id",
    "sessionid": "session_id",
    "subject": "subject",
    "to": "to",
}
TIME_TO_LIVE = "timetolive"

#: All system properties by their folded names.
SYSTEM_PROPERTIES: dict[str, Callable[[Subject], Any]] = {
    **{name: attrgetter(f"message.{field}") for name, field in TEXT_FIELDS.items()},
    TIME_TO_LIVE: _time_to_live,
    "deliverycount": attrgetter("delivery_count"),
    "enqueuedsequencenumber": attrgetter("message.enqueued_sequence_number"),
    "enqueuedtimeutc": lambda subject: time_of(subject.enqueued_time_ms),
    "expiresatutc": lambda subject: time_of(subject.expires_at_ms),
    "scheduledenqueuetimeutc": lambda subject: time_of(subject.message.scheduled_enqueue_time_ms),
    "sequencenumber": attrgetter("sequence_number"),
}
