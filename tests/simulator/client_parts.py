"""What simulated clients work with: kinds of entities, tokens and sessions they were given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from onibus.core.commands import HeldSession
from onibus.core.message import Message
from tests.simulator.model_parts import EntityModel
from tests.simulator.model_rows import Lock

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
    "fair": {"fair_delivery": True, "lock_duration_ms": 9_000},
    "fair-spread": {
        "fair_delivery": True,
        "enable_partitioning": True,
        "lock_duration_ms": 70_000,
        "max_delivery_count": 3,
    },
    "fifo": {"fifo": True, "lock_duration_ms": 3_000},
    "letters": {
        "lock_duration_ms": 2_000,
        "max_delivery_count": 1,
        "default_time_to_live_ms": 20_000,
        "dead_letter_on_expiration": True,
        "forward_dead_letters_to": "everything",
    },
    "hop-4": {"forward_to": "keyed", "default_time_to_live_ms": 15_000},
    "hop-3": {"forward_to": "hop-4", "enable_partitioning": True},
    "hop-2": {"forward_to": "hop-3", "requires_duplicate_detection": True},
    "hop-1": {"forward_to": "hop-2"},
    "hop-0": {"forward_to": "hop-1", "forward_dead_letters_to": "hop-4"},
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
        "strict_groups": True,
        "lock_duration_ms": 2_000,
    },
}

#: The queues with fair delivery.
FAIR = [name for name, given in KINDS.items() if given.get("fair_delivery")]


class TopicKind(NamedTuple):
    """A topic's settings, and of each of its subscriptions the settings and rules."""

    settings: dict[str, Any]
    subscriptions: dict[str, tuple[dict[str, Any], list[str]]]


#: What is made before an entity of a kind, or topic, because messages go on to it.
BEFORE: dict[str, list[str]] = {
    "letters": ["everything"],
    "hop-0": ["keyed", "hop-4", "hop-3", "hop-2", "hop-1"],
    "hop-1": ["keyed", "hop-4", "hop-3", "hop-2"],
    "hop-2": ["keyed", "hop-4", "hop-3"],
    "hop-3": ["keyed", "hop-4"],
    "hop-4": ["keyed"],
    "routed": ["plain", "new-news", "fifo"],
}

#: Every kind of topic; a run has some of them, with their subscriptions.
TOPICS: dict[str, TopicKind] = {
    "news": TopicKind(
        {},
        {
            "everything": ({"lock_duration_ms": 5_000, "max_delivery_count": 3}, ["all"]),
            "short": (
                {"default_time_to_live_ms": 6_000, "dead_letter_on_expiration": True},
                ["not-red", "divided"],
            ),
            "changed": ({"lock_duration_ms": 4_000}, ["marked", "stripped", "moved"]),
            "divided": ({"dead_letter_on_filter_error": False}, ["divided", "red"]),
        },
    ),
    "spread-news": TopicKind(
        {"enable_partitioning": True, "default_time_to_live_ms": 30_000},
        {
            "large": ({"max_delivery_count": 2, "retry_backoff_ms": 300}, ["large"]),
            "copies": ({"lock_duration_ms": 3_000}, ["all", "marked", "inverse"]),
            "short": ({"default_time_to_live_ms": 9_000}, ["red"]),
        },
    ),
    "new-news": TopicKind(
        {"requires_duplicate_detection": True, "duplicate_detection_window_ms": 20_000},
        {
            "divided": ({}, ["inverse"]),
            "none": ({}, ["none"]),
            "mixed": ({"lock_duration_ms": 3_000}, ["red", "moved", "marked"]),
        },
    ),
    "in-sessions": TopicKind(
        {"enable_partitioning": True, "requires_duplicate_detection": True},
        {
            "sessions": ({"requires_session": True, "lock_duration_ms": 5_000}, ["all"]),
            "changed": (
                {"requires_session": True, "max_delivery_count": 3},
                ["marked", "stripped", "divided"],
            ),
            "plain": ({"lock_duration_ms": 5_000}, ["large"]),
        },
    ),
    "routed": TopicKind(
        {"default_time_to_live_ms": 40_000},
        {
            "plain": ({"forward_to": "plain"}, ["marked", "stripped"]),
            "news": ({"forward_to": "new-news", "forward_dead_letters_to": "plain"}, ["divided"]),
            "groups": ({"forward_to": "fifo"}, ["all"]),
        },
    ),
    "in-order": TopicKind(
        {},
        {
            "sessions": (
                {
                    "requires_session": True,
                    "lock_duration_ms": 5_000,
                    "default_time_to_live_ms": 20_000,
                    "dead_letter_on_expiration": True,
                    "retry_backoff_ms": 300,
                },
                ["all", "moved"],
            ),
            "red": ({"requires_session": True}, ["red"]),
        },
    ),
}


def subscription_of(topic: str, name: str) -> str:
    """Return the whole name of a subscription."""
    return f"{topic}/subscriptions/{name}"


def names_of(kinds: Iterable[str]) -> list[str]:
    """Return the names of all entities of these kinds, topics before their subscriptions."""
    wanted = [one for kind in kinds for one in (*BEFORE.get(kind, ()), kind)]
    names = []
    for kind in dict.fromkeys(wanted):
        names.append(kind)
        if kind in TOPICS:
            names += [subscription_of(kind, name) for name in TOPICS[kind].subscriptions]
    return names


def given_for(name: str) -> dict[str, Any]:
    """Return the settings that an entity is made with."""
    topic, _, subscription = name.partition("/subscriptions/")
    if subscription:
        return TOPICS[topic].subscriptions[subscription][0]
    # The wall clock jumps by days here: what is kept for readers is not to go because of that.
    settings = TOPICS[name].settings if name in TOPICS else KINDS[name]
    return settings | {"reader_age_ms_max": None}


class Held:
    """A token that a client was given, valid or not any more."""

    def __init__(self, name: str, uid: int, number: int, lock: int, token: bytes) -> None:
        self.name, self.token = name, token
        self.proof = (uid, number, lock)
        #: the session by which it was received
        self.session: Session | None = None


class Session:
    """A session that a client has accepted."""

    def __init__(self, where: Any, entity: EntityModel, index: int, lock: Lock, real: Any) -> None:
        #: the entity and the partition, as the bus has them
        self.found, self.partition = where
        self.entity, self.index = entity, index
        self.lock, self.token, self.id = lock.id, real.token, real.session_id
        #: what takes it over, in the model and in the bus; 0 if it is exclusive
        self.takeover, self.lock_token = lock.takeover, real.takeover


def real_of(session: Session | None) -> HeldSession | None:
    """Return a session and the token of its receiver, as the bus takes them."""
    return None if session is None else HeldSession(session.id, session.token)


def model_of(session: Session | None) -> tuple[str, int] | None:
    """Return a session and the lock of its receiver, as the model takes them."""
    return None if session is None else (session.id, session.lock)


def brief(message: Message) -> str:
    """Return the fields of a message that matter here."""
    fields = (
        message.body.decode(),
        message.message_id,
        message.session_id,
        message.partition_key,
        message.time_to_live_ms,
        message.scheduled_enqueue_time_ms,
        message.properties or None,
    )
    return " ".join("-" if field is None else str(field) for field in fields)
