"""Queues, topics and subscriptions: their settings, counts and rules."""

from __future__ import annotations

from typing import Any, Generic

import msgspec

from onibus.api.rules import RuleJson
from onibus.core import settings
from onibus.core.errors import InvalidName
from onibus.core.limits import RULE_NAME_LENGTH_MAX
from onibus.core.rules.rule import Rule
from onibus.core.settings import QueueSettings, S, SubscriptionSettings, TopicSettings

#: Segment in a subscription's full name, topic/subscriptions/name, as in Service Bus.
SUBSCRIPTIONS = "subscriptions"


def subscription_name(topic: str, name: Any) -> str:
    """Return the full name of a subscription."""
    if not isinstance(name, str) or "/" in name or len(name) > RULE_NAME_LENGTH_MAX:
        raise InvalidName(
            f"invalid subscription name: use at most {RULE_NAME_LENGTH_MAX} characters and no slash"
        )
    return f"{topic}/{SUBSCRIPTIONS}/{settings.check_name(name)}"


class NoisyGroup(msgspec.Struct, frozen=True):
    """A group whose messages are delivered after those of others (B10)."""

    group: str
    in_flight_count: int
    #: messages of it that receivers passed so far
    passed_count: int


class EntityInfo(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """Settings of an entity, and counts summed over its partitions."""

    name: str
    #: queue, topic or subscription
    kind: str
    settings: S
    created_ms: int
    #: available, or limited while a partition is offline (P10)
    availability: str
    active_count: int
    deferred_count: int
    scheduled_count: int
    dead_lettered_count: int
    held_count: int
    #: messages that left the entity, in any way, since the bus was opened
    gone_count: int
    size_bytes: int
    duplicates_dropped: int
    remembered_ids: int
    offline_partitions: tuple[int, ...]
    #: the names of a topic's subscriptions, and a subscription's rules
    subscriptions: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: of a queue with fair delivery: its noisy groups, the one with most in flight first
    noisy_groups: tuple[NoisyGroup, ...] = ()


class Names(msgspec.Struct):
    """Names of entities, sorted."""

    names: list[str]


class EntityOut(msgspec.Struct, kw_only=True):
    """An entity, with counts summed over its partitions."""

    name: str
    #: queue, topic or subscription
    kind: str
    created_ms: int
    #: available, or limited while a partition is offline (P10)
    availability: str
    active_count: int
    deferred_count: int
    scheduled_count: int
    dead_lettered_count: int
    held_count: int
    #: messages that left the entity, in any way, since the bus was opened
    gone_count: int
    size_bytes: int
    duplicates_dropped: int
    remembered_ids: int
    offline_partitions: list[int]


class QueueOut(EntityOut):
    """A queue."""

    settings: QueueSettings
    #: with fair delivery: the noisy groups, the one with most in flight first
    noisy_groups: list[NoisyGroup] = []


class TopicOut(EntityOut):
    """A topic."""

    settings: TopicSettings
    #: full names
    subscriptions: list[str]


class SubscriptionOut(EntityOut):
    """A subscription to a topic."""

    settings: SubscriptionSettings
    rules: list[RuleJson]


class SubscriptionIn(SubscriptionSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings and rules of a new subscription; default: one rule that selects all messages."""

    rules: list[RuleJson] | None = None


class Rules(msgspec.Struct):
    """The rules of a subscription."""

    rules: list[RuleJson]
