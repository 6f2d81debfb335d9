"""Entities of a configuration, and the creation of missing ones.

Existing entities stay unchanged, since an operator may have changed them; the log lists the
differences.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from onibus.api.entities import subscription_name
from onibus.bus import Bus
from onibus.core import settings
from onibus.core.errors import EntityExists, InvalidArgument, OnibusError
from onibus.core.rules.rule import Rule
from onibus.core.settings import AnySettings, QueueSettings, SubscriptionSettings, TopicSettings

_log = logging.getLogger("onibus.server")


class WantedEntity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity of a configuration, validated as far as possible without the others."""

    #: its place in the configuration, for errors: file and key
    where: str
    name: str
    settings: AnySettings
    given: dict[str, Any]
    #: the topic of a subscription
    topic: str = ""
    #: the name of the subscription
    short_name: str = ""
    #: None if none are named: it gets every message
    rules: list[Rule] | None = None

    @property
    def needs(self) -> set[str]:
        """The entities that must exist first."""
        forward = getattr(self.settings, "forward_to", None)
        dead = getattr(self.settings, "forward_dead_letters_to", None)
        return {name.lower() for name in (self.topic, forward, dead) if name}


def queue(where: str, name: str, given: dict[str, Any]) -> WantedEntity:
    """Return a queue to create."""
    return _checked(where, name, given, QueueSettings)


def topic(where: str, name: str, given: dict[str, Any]) -> WantedEntity:
    """Return a topic to create."""
    return _checked(where, name, given, TopicSettings)


def subscription(
    where: str, topic: str, name: str, given: dict[str, Any], rules: list[Rule] | None
) -> WantedEntity:
    """Return a subscription to create."""
    return _checked(where, name, given, SubscriptionSettings, topic, rules)


def _checked(
    where: str,
    name: str,
    given: dict[str, Any],
    kind: type[QueueSettings] | type[TopicSettings] | type[SubscriptionSettings],
    topic: str = "",
    rules: list[Rule] | None = None,
) -> WantedEntity:
    try:
        whole = subscription_name(topic.lower(), name) if topic else settings.check_name(name)
        made = settings.make(given, kind)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None
    return WantedEntity(
        where=where,
        name=whole,
        settings=made,
        given=given,
        topic=topic.lower(),
        short_name=name,
        rules=rules,
    )


async def create_missing(bus: Bus, wanted: Sequence[WantedEntity]) -> list[str]:
    """Create missing entities; return their names."""
    present = bus.broker.namespace.entities
    for one in wanted:
        if one.name in present:
            _compare(one, present[one.name].settings)
    missing = {one.name: one for one in wanted if one.name not in present}
    made: list[str] = []
    while missing:
        # Forwarding targets must exist first. For a cycle the bus rejects the entity.
        ready = [one for one in missing.values() if not one.needs & missing.keys()]
        ready = ready or list(missing.values())[:1]
        results = await asyncio.gather(
            *(_create(bus, one) for one in ready), return_exceptions=True
        )
        for result in results:
            if result is not None:
                raise result
        for one in ready:
            del missing[one.name]
            made.append(one.name)
    return made


async def _create(bus: Bus, one: WantedEntity) -> None:
    try:
        if isinstance(one.settings, QueueSettings):
            await bus.create_queue(one.name, **one.given)
        elif isinstance(one.settings, TopicSettings):
            await bus.create_topic(one.name, **one.given)
        else:
            await bus.create_subscription(one.topic, one.short_name, rules=one.rules, **one.given)
    except OnibusError as error:
        raise InvalidArgument(f"{one.where}: {error}") from None


def _compare(one: WantedEntity, present: AnySettings) -> None:
    """Log the differences between an entity and the configuration."""
    if type(present) is not type(one.settings):
        raise EntityExists(f"{one.where}: {one.name} exists already as a different kind of entity")
    differing = [
        f"{name} is {getattr(present, name)!r}, not {getattr(one.settings, name)!r}"
        for name in one.given
        if getattr(present, name) != getattr(one.settings, name)
    ]
    if differing:
        _log.warning("%s: entity exists and stays unchanged: %s", one.where, "; ".join(differing))
