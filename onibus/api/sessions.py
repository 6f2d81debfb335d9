"""Requests and results of message sessions."""

from __future__ import annotations

import msgspec

from onibus.api.messages import Count, Numbers, Token, WaitMs


class AcceptSession(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which session to lock; the next that is free if none is named."""

    session_id: str | None = None
    #: the name under which the holder is listed
    owner: str = ""
    wait_ms: WaitMs = 0


class AcceptedOut(msgspec.Struct):
    """A session that is held until its lock ends."""

    session_id: str
    token: str
    locked_until_ms: int


class SessionHeld(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A session, and the token that holds it."""

    session_id: str
    token: Token


class ReceiveSession(SessionHeld, forbid_unknown_fields=True, kw_only=True):
    """How much to receive from a session."""

    limit: Count = 1
    wait_ms: WaitMs = 0
    delete: bool = False


class ReceiveSessionDeferred(SessionHeld, forbid_unknown_fields=True, kw_only=True):
    """Which deferred messages of a session to receive: all of them, or none."""

    numbers: Numbers


class SetSessionState(SessionHeld, forbid_unknown_fields=True, kw_only=True):
    """What to keep with a session; nothing clears it."""

    state: str | None = None
    state_base64: str | None = None


class SessionState(msgspec.Struct):
    """What is kept with a session: text or, where it is none, base64."""

    state: str | None = None
    state_base64: str | None = None


class SessionOut(msgspec.Struct, kw_only=True):
    """A session as it is listed (X8)."""

    session_id: str
    ready_count: int
    held_count: int
    oldest_enqueued_time_ms: int | None
    locked_until_ms: int | None
    #: the name its holder gave, empty if none
    lock_holder: str | None
    state_base64: str | None


class Sessions(msgspec.Struct):
    """Sessions that have messages, a lock or a state."""

    sessions: list[SessionOut]
