"""Filters that select messages, and sessions as they are listed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from onibus.core.errors import FilterFailed
from onibus.core.message import ReceivedMessage
from onibus.core.rules.sql_compile import Condition, compile_filter
from onibus.core.rules.subject import subject_of


class Filter(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Which messages are meant; what is left out does not restrict (X5)."""

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

    @cached_property
    def condition(self) -> Condition | None:
        """The SQL filter, compiled once."""
        return None if self.sql is None else compile_filter(self.sql, self.sql_parameters)

    def matches(self, message: ReceivedMessage) -> bool:
        """Tell whether a message is meant, as far as its own fields go."""
        stamp = message.enqueued_time_ms
        return (
            (self.session_id is None or message.session_id == self.session_id)
            and (self.message_id is None or message.message_id == self.message_id)
            and (self.body_contains is None or self.body_contains in message.body)
            and (self.enqueued_from_ms is None or stamp >= self.enqueued_from_ms)
            and (self.enqueued_before_ms is None or stamp < self.enqueued_before_ms)
            and (self.sql is None or self._selects(message))
        )

    def _selects(self, message: ReceivedMessage) -> bool:
        """Tell whether the SQL filter is true; where it cannot be evaluated it is not."""
        assert self.condition is not None
        try:
            return self.condition(subject_of(message)) is True
        except FilterFailed:
            return False


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
