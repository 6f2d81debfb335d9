"""Readers that each new entity has from its creation on, so that no row is deleted unread.

One commit creates an entity and its standing readers. `namespace.standing` says which ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from onibus.core.records import READERS, WriteBatch
from onibus.directory import readers
from onibus.directory.entity import Entity
from onibus.directory.named_reader import NamedReader, ReaderRow

if TYPE_CHECKING:
    from onibus.directory.host import Host

#: The first ordinal of a log, and the number of the first outcome.
_FIRST = 1


class StandingReader(msgspec.Struct, frozen=True, kw_only=True):
    """A reader that a new entity gets."""

    name: str
    #: messages or outcomes
    log: str
    address: str
    idle_ms: int


#: Returns the readers that an entity of this name gets.
Standing = Callable[[str], Sequence[StandingReader]]


def add_standing(broker: Host, entity: Entity, batch: WriteBatch) -> None:
    """Add readers to an entity, and to the commit that creates it."""
    wall = broker.clock.wall()
    for one in broker.namespace.standing(entity.name):
        row = ReaderRow(
            log=one.log,
            positions=[_FIRST] * len(entity.stores),
            created=wall,
            moved=wall,
            idle_ms=one.idle_ms,
            address=one.address,
        )
        entity.readers[one.name] = NamedReader(one.name, row, broker.clock.now(), durable=False)
        batch.put(READERS, (entity.incarnation, one.name, msgspec.json.encode(row)))


def start_standing(broker: Host, entity: Entity) -> None:
    """Keep rows for the readers of an entity that was just created."""
    for reader in entity.readers.values():
        reader.durable = True
        readers.keep(broker, entity, reader)
        readers.watch_idle(broker, entity, reader)
