"""What simulated clients work with: kinds of queues, tokens and sessions they were given."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from onibus.core.message import Message
from onibus.testing.model import Row
from onibus.testing.model_parts import EntityModel

#: Every kind of queue; a run has some of them.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"lock_duration_ms": 5_000},
    "mortal": {
        "lock_duration_ms": 3_000,
        "default_time_to_live_ms": 20_000,
        "dead_letter_on_expiration": True,
        "max_delivery_count": 3,
    },
    "fading": {
        "lock_duration_ms": 2_000,
        "max_delivery_count": 2,
        "retry_backoff_ms": 700,
        "retry_backoff_ms_max": 2_000,
    },
    "detecting": {"requires_duplicate_detection": True, "duplicate_detection_window_ms": 20_000},
    "spread": {"enable_partitioning": True, "lock_duration_ms": 4_000, "max_delivery_count": 3},
    "sessions": {
        "requires_session": True,
        "lock_duration_ms": 6_000,
        "max_delivery_count": 3,
        "retry_backoff_ms": 300,
    },
    "everything": {
        "enable_partitioning": True,
        "requires_session": True,
        "requires_duplicate_detection": True,
        "lock_duration_ms": 6_000,
        "duplicate_detection_window_ms": 60_000,
        "max_delivery_count": 4,
    },
    "keyed": {
        "enable_partitioning": True,
        "requires_duplicate_detection": True,
        "duplicate_detection_window_ms": 30_000,
        "default_time_to_live_ms": 40_000,
    },
    "fifo": {"fifo": True, "lock_duration_ms": 3_000},
    "content": {
        "fifo": True,
        "content_based_deduplication": True,
        "max_delivery_count": 3,
        "lock_duration_ms": 3_000,
        "deduplication_scope": "messageGroup",
        "one_message_per_group": True,
    },
    "strict": {
        "fifo": True,
        "content_based_deduplication": True,
        "content_matches_any_id": True,
        "strict_attempts": True,
        "lock_duration_ms": 2_000,
    },
}


class Held:
    """A token that a client was given, valid or not any more."""

    def __init__(self, name: str, uid: int, number: int, lock: int, token: bytes) -> None:
        self.name, self.token = name, token
        self.proof = (uid, number, lock)


class Session:
    """A session that a client has accepted."""

    def __init__(self, where: Any, entity: EntityModel, index: int, lock: int, real: Any) -> None:
        #: the entity and the partition, as the bus has them
        self.found, self.seat = where
        self.entity, self.index = entity, index
        self.lock, self.token, self.id = lock, real.token, real.session_id


def changed(row: Row, given: dict[str, Any] | None) -> Row:
    """Return a message with the properties that settling changed."""
    return replace(row, properties=row.properties | given) if given else row


def brief(message: Message) -> str:
    """Return the fields of a message that matter here."""
    fields = (
        message.body.decode(),
        message.message_id,
        message.session_id,
        message.partition_key,
        message.time_to_live_ms,
        message.scheduled_enqueue_time_ms,
    )
    return " ".join("-" if field is None else str(field) for field in fields)
