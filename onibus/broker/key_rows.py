"""Shared access keys in the namespace's own store: rows of `meta`, whose content is not read here.

Whoever checks keys writes and reads the content, and is told when keys have come, changed or gone.
Keys of an entity go with it: one that is made again under its name has none of them.
"""

from __future__ import annotations

from collections.abc import Callable

from onibus.core.records import META, WriteBatch
from onibus.store.interface import Store

#: `meta` rows of this prefix have keys: key/ENTITY/NAME; the entity is empty for the namespace.
PREFIX = "key/"

#: The entity and the name of a key; a name has no slash.
KeyName = tuple[str, str]


class KeyRows:
    """The keys that the namespace keeps."""

    def __init__(self) -> None:
        self.rows: dict[KeyName, bytes] = {}
        self.changed: Callable[[], None] = lambda: None

    def open(self, store: Store) -> None:
        """Read what is kept, also after the store failed and nobody knew what is kept."""
        self.rows = {
            _name(row): value
            for row, value in store.scan(META)
            if isinstance(row, str) and row.startswith(PREFIX) and isinstance(value, bytes)
        }
        self.changed()

    def written(self, name: KeyName, content: bytes | None) -> WriteBatch:
        """Return what makes a key, or its end, durable."""
        batch = WriteBatch()
        if content is None:
            batch.delete(META, (_row(name),))
        else:
            batch.put(META, (_row(name), content))
        return batch

    def take(self, name: KeyName, content: bytes | None) -> None:
        """It is durable: from now on it counts."""
        if content is None:
            self.rows.pop(name, None)
        else:
            self.rows[name] = content
        self.changed()

    def erase(self, entity: str, batch: WriteBatch) -> None:
        """An entity is being deleted: so are its keys."""
        for name in self.rows:
            if name[0] == entity:
                batch.delete(META, (_row(name),))

    def forget(self, entity: str) -> None:
        """An entity was deleted."""
        left = {name: content for name, content in self.rows.items() if name[0] != entity}
        if len(left) != len(self.rows):
            self.rows = left
            self.changed()


def _row(name: KeyName) -> str:
    return PREFIX + "/".join(name)


def _name(row: str) -> KeyName:
    entity, _, name = row.removeprefix(PREFIX).rpartition("/")
    return entity, name
