"""Entities as they are kept in the namespace's store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from onibus.broker.entity import KINDS, Entity
from onibus.core.records import Row
from onibus.core.rules.rule import from_plain, to_plain


class EntityRow(msgspec.Struct, omit_defaults=True):
    """The JSON in the `settings` column of an `entities` row."""

    settings: dict[str, Any]
    stores: list[str] = []
    #: the incarnation of a subscription's topic
    topic: int = 0
    rules: list[dict[str, Any]] = []


def row_of(entity: Entity) -> Row:
    """Return an entity as it is kept in the namespace's store."""
    content = EntityRow(
        msgspec.to_builtins(entity.settings),
        entity.stores if entity.topic is None else [],
        0 if entity.topic is None else entity.topic.incarnation,
        [to_plain(rule) for rule in entity.rules],
    )
    return (
        entity.incarnation,
        entity.name,
        entity.kind,
        msgspec.json.encode(content),
        entity.created,
    )


def entity_of(row: Row, topics: Mapping[int, Entity]) -> Entity:
    """Return an entity read back from its row; topics stand before their subscriptions."""
    incarnation, name, kind, content, created = row
    assert isinstance(incarnation, int)
    assert isinstance(name, str)
    assert isinstance(content, bytes)
    assert isinstance(created, int)
    kept = msgspec.json.decode(content, type=EntityRow)
    settings = msgspec.convert(kept.settings, next(k for k, word in KINDS.items() if word == kind))
    topic = topics[kept.topic] if kept.topic else None
    rules = [from_plain(plain) for plain in kept.rules]
    return Entity(incarnation, name, settings, created, kept.stores, topic, rules)
