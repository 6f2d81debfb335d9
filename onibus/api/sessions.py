"""Requests and results of message sessions."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from onibus.api.messages import Count, Numbers, Token, WaitMs


class AcceptSession(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The session to accept; default: the next available one."""

    session_id: str | None = None
    #: name of the holder in lists
    owner: str = ""
    wait_ms: WaitMs = 0


class AcceptedOut(msgspec.Struct):
    """A locked session."""

    session_id: str
    token: str
    locked_until_ms: int


class SessionHeld(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A session, and its lock token."""

    session_id: str
    token: Token


class ReceiveSession(SessionHeld, forbid_unknown_fields=True, kw_only=True):
    """The number of messages to receive from a session."""

    limit: Count = 1
    wait_ms: WaitMs = 0
    delete: bool = False


class ReceiveSessionDeferred(SessionHeld, forbid_unknown_fields=True, kw_only=True):
    """Deferred messages of a session to receive, atomically."""

    numbers: Numbers


class SetSessionState(SessionHeld, forbid_unknown_fields=True, kw_only=True):
    """A session state to set; an empty request clears it."""

    state: str | None = None
    state_base64: str | None = None


class SessionState(msgspec.Struct):
    """A session state: a string or, if it is not UTF-8, base64."""

    state: str | None = None
    state_base64: str | None = None


class SessionOut(msgspec.Struct, kw_only=True):
    """A session in a list (X8)."""

    session_id: str
    ready_count: int
    held_count: int
    oldest_enqueued_time_ms: int | None
    locked_until_ms: int | None
    #: the name that its holder gave, empty if none
    lock_holder: str | None
    state_base64: str | None


class SessionsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which sessions to list; default: all, by their ids."""

    #: lists only the ones whose oldest message waits longest
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    #: with a limit: lists sessions whose id contains this, in any case
    search: str = ""


class Sessions(msgspec.Struct):
    """Sessions that have messages, a lock or a state."""

    sessions: list[SessionOut]
    #: sessions that match, also those that are not listed
    count: int = 0
