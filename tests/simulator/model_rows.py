"""What the model knows of messages: locks, rows, and what is checked before one is stored."""

from __future__ import annotations

from hashlib import sha256
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from onibus.core.errors import InvalidOperation
from onibus.core.message import Message
from onibus.core.settings import LogSettings

FOREVER = 1 << 62
FIFO_INTERVAL = 300_000
REASONS = {
    "expired": ("TTLExpiredException", "The message expired and was dead lettered."),
    "deliveries": (
        "MaxDeliveryCountExceeded",
        "Message could not be consumed after {} delivery attempts.",
    ),
    "no session": (
        "Session id is null",
        "Session enabled entity doesn't allow a message whose session identifier is null.",
    ),
}
_hold_ids = count(1)


def begin_anew() -> None:
    """Count locks from 1 again, so that a run reads the same each time."""
    global _hold_ids
    _hold_ids = count(1)


def next_hold() -> int:
    """Return what tells a new lock from all others."""
    return next(_hold_ids)


class Lock(msgspec.Struct, frozen=True):
    """What keeps a message, or a session, from others. `by` is the session whose lock it is."""

    id: int
    until: int
    duration: int
    by: str | None = None
    attempt: str | None = None
    #: the work that will change the message, instead of a receiver
    work: int = 0
    #: the claim that has it
    owner: str = ""
    #: of a session's lock: what takes it over; 0 if it is exclusive (B9)
    takeover: int = 0
    #: when a receiver got it
    since: int = 0


class Row(msgspec.Struct, frozen=True):
    """A message and everything that is known of it."""

    #: its place among all rows, and the number that clients know it by
    ordinal: int
    number: int
    message: Message
    stamp: int
    expires: int = FOREVER
    state: str = "active"
    dead: bool = False
    deliveries: int = 0
    due: int = 0
    lock: Lock | None = None
    reason: str | None = None
    description: str | None = None
    properties: dict[str, Any] = {}
    #: when it came, and when it would expire wherever it is
    arrived: int = 0
    expires_anyhow: int = FOREVER

    @property
    def is_ready(self) -> bool:
        """Whether it could be delivered, as far as it depends on the message alone."""
        return self.state == "active" and self.lock is None and not self.dead

    def words(self) -> str:
        """Return the state as peek shows it."""
        parts = ["dead-lettered"] if self.dead else []
        if self.state != "active" or not (self.dead or self.lock):
            parts.append(self.state)
        return " ".join([*parts, "locked"] if self.lock else parts)


def changed(row: Row, given: dict[str, Any] | None) -> Row:
    """Return a message with the properties that settling changed."""
    return replace(row, properties=row.properties | given) if given else row


class Prepared(msgspec.Struct, frozen=True):
    """An admitted message, its identities and its time to live."""

    message: Message
    identities: list[Any]
    ttl: int | None
    key: str | None


def key_of(message: Message, settings: LogSettings) -> str | None:
    """Return the effective key (P3)."""
    for key in (message.session_id, message.partition_key):
        if key is not None:
            return key
    return message.message_id if settings.requires_duplicate_detection else None


def time_to_live(message: Message, settings: LogSettings) -> int | None:
    """Return the smaller of the message's own and the entity's (B2)."""
    both = [message.time_to_live_ms, settings.default_time_to_live_ms]
    return min((ttl for ttl in both if ttl is not None), default=None)


def prepare(message: Message, settings: LogSettings) -> Prepared:
    """Check a message (P3, B4, D11, F2) and find what it is a duplicate by (D3, F1–F7)."""
    session, key = message.session_id, message.partition_key
    if session is not None and key is not None and session != key:
        raise InvalidOperation("two keys")
    if settings.requires_session and session is None:
        what = "group (session_id)" if settings.fifo else "session_id"
        raise InvalidOperation(f"this entity requires a {what} on every message")
    content = sha256(message.body).hexdigest()
    if settings.fifo and message.message_id is None:
        if not settings.content_based_deduplication:
            raise InvalidOperation(
                "a FIFO queue requires a deduplication id (message_id) on every message, "
                "or content_based_deduplication"
            )
        message = replace(message, message_id=content)
    key = key_of(message, settings)
    names = [message.message_id]
    if settings.content_matches_any_id:
        names.append(content)
    scope = key if settings.enable_partitioning else None
    if settings.deduplication_scope == "messageGroup":
        scope = session
    if settings.requires_duplicate_detection and settings.enable_partitioning and key is None:
        raise InvalidOperation(
            "a partitioned entity with duplicate detection requires a message_id, "
            "a partition_key or a session_id"
        )
    known = settings.requires_duplicate_detection and message.message_id is not None
    identities = [(name, scope) for name in names] if known else []
    return Prepared(message, identities, time_to_live(message, settings), key)
