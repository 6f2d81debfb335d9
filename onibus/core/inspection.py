"""Filters that select messages, and sessions as they are listed."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import msgspec

from onibus.core.errors import FilterFailed, InvalidArgument
from onibus.core.lifecycle import DEAD, State
from onibus.core.message import ReceivedMessage, size_of_properties
from onibus.core.rules.sql_compile import Condition, compile_filter
from onibus.core.rules.subject import Subject, subject_of

#: The words by which a filter names states.
STATES: dict[str, frozenset[State]] = {
    "active": frozenset({State.ACTIVE, State.LOCKED, State.DELAYED}),
    "deferred": frozenset({State.DEFERRED, State.DEFERRED_LOCKED}),
    "scheduled": frozenset({State.SCHEDULED}),
    "dead-lettered": DEAD,
}

#: Bytes that are read in about the time of a step of an SQL filter (core/rules/subject.py).
BYTES_A_STEP = 10

#: A name, or a place in a list, in the path to a field of a JSON body.
_STEP = re.compile(r"([^.\[\]]+)|\[(0|[1-9]\d{0,8})\]")


class Filter(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The messages that an operation selects; a field left out does not restrict it (X5)."""

    #: active, deferred, scheduled or dead-lettered; None: all that the queue shows
    state: str | None = None
    session_id: str | None = None
    message_id: str | None = None
    body_contains: bytes | None = None
    enqueued_from_ms: int | None = None
    enqueued_before_ms: int | None = None
    #: an SQL filter (docs/sql-filters.md), and the values of its parameters
    sql: str | None = None
    sql_parameters: dict[str, Any] = {}
    #: a field of a JSON body, such as customer.orders[0].id, and the string or JSON value it has
    body_path: str | None = None
    body_equals: str | None = None
    dead_letter_reason: str | None = None

    @cached_property
    def steps(self) -> list[str | int]:
        """The path to a field of the body: names, and places in lists."""
        return json_steps(self.body_path or "")

    @cached_property
    def condition(self) -> Condition | None:
        """The SQL filter, compiled once."""
        return None if self.sql is None else compile_filter(self.sql, self.sql_parameters)

    def matches(self, message: ReceivedMessage) -> bool:
        """Return whether the message's own fields match."""
        return self.look(message)[0]

    def look(self, message: ReceivedMessage) -> tuple[bool, int]:
        """Return whether a message matches, and what finding out took, as bytes that are read."""
        size = len(message.body)
        if message.properties:
            size += size_of_properties(message.properties)
        if not self._has_fields(message):
            return False, size
        if self.sql is None:
            return True, size
        subject = subject_of(message)
        selected = self._selects(subject)
        return selected, size + BYTES_A_STEP * (len(self.sql) // 4 + subject.steps)

    def _has_fields(self, message: ReceivedMessage) -> bool:
        stamp = message.enqueued_time_ms
        return (
            (self.session_id is None or message.session_id == self.session_id)
            and (self.message_id is None or message.message_id == self.message_id)
            and (self.body_contains is None or self.body_contains in message.body)
            and (self.enqueued_from_ms is None or stamp >= self.enqueued_from_ms)
            and (self.enqueued_before_ms is None or stamp < self.enqueued_before_ms)
            and self.dead_letter_reason in (None, message.dead_letter_reason or "")
            and (self.body_path is None or self._has_field(message.body))
        )

    def _has_field(self, body: bytes) -> bool:
        """Return whether the body is JSON, has the field, and the field has the value."""
        try:
            value: Any = msgspec.json.decode(body)
            for step in self.steps:
                if isinstance(value, str):
                    return False
                value = value[step]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
            return False
        if self.body_equals in (None, value):
            return True
        as_json = msgspec.json.encode(value).decode()
        return not isinstance(value, str) and as_json == self.body_equals

    def _selects(self, subject: Subject) -> bool:
        """Return whether the SQL filter is true; a filter that cannot be evaluated is not."""
        assert self.condition is not None
        try:
            return self.condition(subject) is True
        except FilterFailed:
            return False


def check_filter(wanted: object, dead: bool) -> None:
    """Reject a filter with an invalid field, for a queue or for its dead-letter queue."""
    if not isinstance(wanted, Filter):
        raise InvalidArgument(f"pass a Filter, not a {type(wanted).__name__}")
    try:
        msgspec.convert(msgspec.structs.asdict(wanted), Filter, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"a field of the filter has the wrong type: {error}") from None
    if wanted.sql_parameters and wanted.sql is None:
        raise InvalidArgument("sql_parameters need an SQL filter: set sql as well")
    _ = wanted.condition  # compiles its SQL, or rejects it
    if wanted.body_path is not None:
        _ = wanted.steps
    elif wanted.body_equals is not None:
        raise InvalidArgument("body_equals needs body_path: name the field of the body")
    if dead and wanted.state not in (None, "dead-lettered"):
        raise InvalidArgument(
            f"a dead-letter queue has no {wanted.state} messages: omit one of the two"
        )
    if wanted.state is not None and wanted.state not in STATES:
        raise InvalidArgument(f"state is {wanted.state!r}: use one of {', '.join(STATES)}")


def json_steps(path: str) -> list[str | int]:
    """Return the names and places that a path such as `a.b[0]` goes through, or reject it."""
    steps: list[str | int] = [int(place) if place else name for name, place in _STEP.findall(path)]
    written = "".join([f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps])
    if not steps or written.removeprefix(".") != path:
        raise InvalidArgument(f"body_path {path!r} is not a path such as customer.orders[0].id")
    return steps


class AcceptedSession(msgspec.Struct, frozen=True):
    """A session that its holder may receive from until its lock ends."""

    session_id: str
    token: bytes
    locked_until_ms: int
    #: the token that takes the session over, if it was accepted non-exclusively
    takeover: bytes | None = None


class NonExclusive(msgspec.Struct, frozen=True):
    """A request to hold a session so that a receiver that knows its token can take it over (B9)."""

    #: takes over the lock that has this token; None: locks a session that is free
    takeover: bytes | None = None


class SessionInfo(msgspec.Struct, frozen=True):
    """A session as it is listed (X8)."""

    session_id: str
    ready_count: int
    held_count: int
    oldest_enqueued_time_ms: int | None
    locked_until_ms: int | None
    #: the name its holder gave, empty if none
    lock_holder: str | None
    state: bytes | None


class Event(msgspec.Struct, omit_defaults=True):
    """An event in the past or future of a message."""

    what: str
    #: when it happened or will happen; absent if that is not kept
    at_ms: int | None = None
    detail: str = ""


class Life(msgspec.Struct):
    """A message and its events, as far as they are known."""

    message: ReceivedMessage
    events: list[Event]
