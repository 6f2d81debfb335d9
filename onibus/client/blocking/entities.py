"""Queues, topics, subscriptions and rules: create, change, delete and show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from onibus.api.entities import (
    EntityInfo,
    Names,
    QueueOut,
    Rules,
    SubscriptionOut,
    TopicOut,
    subscription_name,
)
from onibus.api.rules import rule_of, rule_out
from onibus.client.asking import get, path_of, post
from onibus.client.blocking.caller import Caller
from onibus.client.convert import entity_of
from onibus.core.rules.rule import Rule
from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings

_QUEUES, _TOPICS, _SUBSCRIPTIONS = "queues", "topics", "subscriptions"


class EntityCalls(Caller):
    """Operations on entities."""

    def create_queue(self, name: str, **settings: Any) -> EntityInfo[QueueSettings]:
        """Create a queue; `settings` are the fields of QueueSettings."""
        ask = post(path_of(_QUEUES, name), settings, method="PUT")
        return entity_of(self.ask(ask, QueueOut))

    def change_queue(self, name: str, **settings: Any) -> EntityInfo[QueueSettings]:
        """Change a queue's settings."""
        ask = post(path_of(_QUEUES, name), settings, method="PATCH")
        return entity_of(self.ask(ask, QueueOut))

    def delete_queue(self, name: str) -> None:
        """Delete a queue and all its messages."""
        self.answer(post(path_of(_QUEUES, name), method="DELETE"))

    def queue(self, name: str) -> EntityInfo[QueueSettings]:
        """Return a queue's settings and counts."""
        return entity_of(self.ask(get(path_of(_QUEUES, name)), QueueOut))

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        names: Names = self.ask(get(path_of(_QUEUES)), Names)
        return names.names

    def create_topic(self, name: str, **settings: Any) -> EntityInfo[TopicSettings]:
        """Create a topic; `settings` are the fields of TopicSettings."""
        ask = post(path_of(_TOPICS, name), settings, method="PUT")
        return entity_of(self.ask(ask, TopicOut))

    def change_topic(self, name: str, **settings: Any) -> EntityInfo[TopicSettings]:
        """Change a topic's settings."""
        ask = post(path_of(_TOPICS, name), settings, method="PATCH")
        return entity_of(self.ask(ask, TopicOut))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its subscriptions and all their messages."""
        self.answer(post(path_of(_TOPICS, name), method="DELETE"))

    def topic(self, name: str) -> EntityInfo[TopicSettings]:
        """Return a topic's settings, counts and subscriptions."""
        return entity_of(self.ask(get(path_of(_TOPICS, name)), TopicOut))

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        names: Names = self.ask(get(path_of(_TOPICS)), Names)
        return names.names

    def create_subscription(
        self, topic: str, name: str, *, rules: Sequence[Rule] | None = None, **settings: Any
    ) -> str:
        """Create a subscription to a topic; return the name to receive from.

        `settings` are the fields of SubscriptionSettings. Without rules it gets every message.
        """
        whole = subscription_name(topic, name)
        if rules is not None:
            settings["rules"] = [to_builtins(rule_out(rule)) for rule in rules]
        ask = post(path_of(_SUBSCRIPTIONS, whole), settings, method="PUT")
        made: SubscriptionOut = self.ask(ask, SubscriptionOut)
        return made.name

    def change_subscription(
        self, subscription: str, **settings: Any
    ) -> EntityInfo[SubscriptionSettings]:
        """Change the settings of a subscription, given by its full name."""
        ask = post(path_of(_SUBSCRIPTIONS, subscription), settings, method="PATCH")
        return entity_of(self.ask(ask, SubscriptionOut))

    def delete_subscription(self, subscription: str) -> None:
        """Delete a subscription and all its messages."""
        self.answer(post(path_of(_SUBSCRIPTIONS, subscription), method="DELETE"))

    def subscription(self, subscription: str) -> EntityInfo[SubscriptionSettings]:
        """Return a subscription's settings, counts and rules."""
        ask = get(path_of(_SUBSCRIPTIONS, subscription))
        return entity_of(self.ask(ask, SubscriptionOut))

    def rules(self, subscription: str) -> list[Rule]:
        """Return the rules of a subscription."""
        told: Rules = self.ask(get(path_of(_SUBSCRIPTIONS, subscription, "rules")), Rules)
        return [rule_of(rule) for rule in told.rules]

    def create_rule(self, subscription: str, rule: Rule) -> None:
        """Add a rule: from now on the subscription gets the messages that it selects."""
        self.answer(post(path_of(_SUBSCRIPTIONS, subscription, "rules"), rule_out(rule)))

    def change_rule(self, subscription: str, rule: Rule) -> None:
        """Replace a rule atomically: each message meets either the old rule or the new one."""
        path = path_of(_SUBSCRIPTIONS, subscription, "rules", rule.name)
        self.answer(post(path, rule_out(rule), method="PUT"))

    def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule; a subscription without rules gets no messages."""
        path = path_of(_SUBSCRIPTIONS, subscription, "rules", name)
        self.answer(post(path, method="DELETE"))
