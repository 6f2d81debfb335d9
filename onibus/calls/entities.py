"""Queues, topics, subscriptions and rules: create, change, delete and show them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from onibus.api.entities import EntityInfo, subscription_name
from onibus.calls.caller import Caller
from onibus.core.rules.rule import DEFAULT_RULE, Rule, compile_rules
from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings
from onibus.directory.entity import QUEUE, SUBSCRIPTION, TOPIC
from onibus.directory.entity_rules import with_rule_changed, without_rule
from onibus.directory.namespace import Namespace
from onibus.gateway.entity_info import info
from onibus.shard.replies import Reply

#: More rules than this are compiled on a thread: a large one takes 2 ms.
COMPILED_HERE = 4


class EntityCalls(Caller):
    """Operations on entities."""

    async def create_queue(self, name: str, **settings: Any) -> None:
        """Create a queue; `settings` are the fields of QueueSettings."""
        await self._decide(
            lambda namespace, reply: namespace.create(name, QueueSettings, settings, reply)
        )

    async def change_queue(self, name: str, **settings: Any) -> None:
        """Change a queue's settings."""
        await self._change(QUEUE, name, settings)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue and all its messages."""
        await self._delete(QUEUE, name)

    def queue(self, name: str) -> EntityInfo[QueueSettings]:
        """Return a queue's settings and counts."""
        return self._info(QUEUE, name)

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        return self._names(QUEUE)

    async def create_topic(self, name: str, **settings: Any) -> None:
        """Create a topic; `settings` are the fields of TopicSettings."""
        await self._decide(
            lambda namespace, reply: namespace.create(name, TopicSettings, settings, reply)
        )

    async def change_topic(self, name: str, **settings: Any) -> None:
        """Change a topic's settings."""
        await self._change(TOPIC, name, settings)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, its subscriptions and all their messages."""
        await self._delete(TOPIC, name)

    def topic(self, name: str) -> EntityInfo[TopicSettings]:
        """Return a topic's settings, counts and subscriptions."""
        return self._info(TOPIC, name)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return self._names(TOPIC)

    async def create_subscription(
        self, topic: str, name: str, *, rules: Sequence[Rule] | None = None, **settings: Any
    ) -> str:
        """Create a subscription to a topic; return the name to receive from.

        `settings` are the fields of SubscriptionSettings. Without rules it gets every message.
        """
        chosen = [Rule(DEFAULT_RULE)] if rules is None else rules
        if isinstance(chosen, Sequence) and len(chosen) > COMPILED_HERE:
            await asyncio.to_thread(compile_rules, chosen)
        await self._decide(
            lambda namespace, reply: namespace.create_subscription(
                topic, name, settings, chosen, reply
            )
        )
        return self.broker.find(subscription_name(topic, name)).name

    async def change_subscription(self, subscription: str, **settings: Any) -> None:
        """Change the settings of a subscription, given by its full name."""
        await self._change(SUBSCRIPTION, subscription, settings)

    async def delete_subscription(self, subscription: str) -> None:
        """Delete a subscription and all its messages."""
        await self._delete(SUBSCRIPTION, subscription)

    def subscription(self, subscription: str) -> EntityInfo[SubscriptionSettings]:
        """Return a subscription's settings, counts and rules."""
        return self._info(SUBSCRIPTION, subscription)

    async def create_rule(self, subscription: str, rule: Rule) -> None:
        """Add a rule: from now on the subscription gets the messages that it selects."""
        await self._decide(
            lambda namespace, reply: namespace.change_rules(
                subscription, lambda rules: [*rules, rule], reply
            )
        )

    async def change_rule(self, subscription: str, rule: Rule) -> None:
        """Replace a rule atomically: each message meets either the old rule or the new one."""
        await self._decide(
            lambda namespace, reply: namespace.change_rules(
                subscription, lambda rules: with_rule_changed(rules, rule), reply
            )
        )

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule; a subscription without rules gets no messages."""
        await self._decide(
            lambda namespace, reply: namespace.change_rules(
                subscription, lambda rules: without_rule(rules, name), reply
            )
        )

    async def _decide(self, decide: Callable[[Namespace, Reply], None]) -> None:
        await self.ask(lambda reply: decide(self.broker.namespace, reply))

    async def _change(self, kind: str, name: str, settings: dict[str, Any]) -> None:
        self.check_alive()
        found = self.broker.find(name, kind).name
        await self._decide(
            lambda namespace, reply: namespace.change(found, lambda _: settings, reply)
        )

    async def _delete(self, kind: str, name: str) -> None:
        self.check_alive()
        found = self.broker.find(name, kind).name
        await self._decide(lambda namespace, reply: namespace.delete(found, reply))

    def _info(self, kind: str, name: str) -> EntityInfo[Any]:
        return self.tell(lambda: info(self.broker, self.broker.find(name, kind).name))

    def _names(self, kind: str) -> list[str]:
        entities = self.broker.namespace.entities
        return self.tell(lambda: sorted(one.name for one in entities.values() if one.kind == kind))
