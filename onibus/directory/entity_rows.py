"""Entities as they are kept in the namespace's store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from onibus.core.records import Row
from onibus.core.rules.rule import Rule, compile_rules, from_plain, to_plain
from onibus.core.settings import AnySettings
from onibus.directory.entity import KINDS, Entity


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


class KeptEntity(msgspec.Struct, frozen=True, eq=False):
    """An entity as it was read from its row."""

    incarnation: int
    name: str
    created: int
    settings: AnySettings
    stores: list[str]
    #: the incarnation of a subscription's topic, or 0
    topic: int
    rules: list[Rule]

    def entity(self, topics: Mapping[int, Entity]) -> Entity:
        """Return the entity; its topic must be among these."""
        topic = topics[self.topic] if self.topic else None
        given = (self.incarnation, self.name, self.settings, self.created, self.stores)
        return Entity(*given, topic, self.rules)


def kept_of(row: Row) -> KeptEntity:
    """Return an entity read from its row."""
    incarnation, name, kind, content, created = row
    assert isinstance(incarnation, int)
    assert isinstance(name, str)
    assert isinstance(content, bytes)
    assert isinstance(created, int)
    kept = msgspec.json.decode(content, type=EntityRow)
    settings = msgspec.convert(kept.settings, next(k for k, word in KINDS.items() if word == kind))
    rules = [from_plain(plain) for plain in kept.rules]
    compile_rules(rules)
    return KeptEntity(incarnation, name, created, settings, kept.stores, kept.topic, rules)
