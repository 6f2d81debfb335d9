"""Shared access keys in the namespace's own store: rows of `meta`, whose content is not read here.

The keyring writes and reads the content, and is notified when keys are added, changed or deleted.
Keys of an entity are deleted with it: an entity recreated under its name has none of them. One more
row says that an operator has changed a key: it stays when the key is deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from onibus.core.records import META, WriteBatch
from onibus.store.interface import Store

#: `meta` rows of this prefix have keys: key/ENTITY/NAME; the entity is empty for the namespace.
PREFIX = "key/"
#: The `meta` row of a bus whose operator has created, changed or deleted a key.
MANAGED = "keys-managed"

#: The entity and the name of a key; a name has no slash.
KeyName = tuple[str, str]


class KeyRows:
    """The keys that the namespace keeps."""

    def __init__(self) -> None:
        self.rows: dict[KeyName, bytes] = {}
        #: an operator has changed a key
        self.managed = False
        self.changed: Callable[[], None] = lambda: None

    def open(self, store: Store) -> None:
        """Read the stored keys, even after a failed store left their state unknown."""
        found = {row: value for row, value in store.scan(META) if isinstance(row, str)}
        self.rows = {
            _name(row): value
            for row, value in found.items()
            if row.startswith(PREFIX) and isinstance(value, bytes)
        }
        self.managed = MANAGED in found
        self.changed()

    def written(self, name: KeyName, content: bytes | None, managed: bool) -> WriteBatch:
        """Return what makes a key, or its end, durable."""
        batch = WriteBatch()
        if managed:
            batch.put(META, (MANAGED, b""))
        if content is None:
            batch.delete(META, (_row(name),))
        else:
            batch.put(META, (_row(name), content))
        return batch

    def take(self, name: KeyName, content: bytes | None, managed: bool) -> None:
        """Apply a key change that is durable."""
        self.managed |= managed
        if content is None:
            self.rows.pop(name, None)
        else:
            self.rows[name] = content
        self.changed()

    def erase(self, entity: str, batch: WriteBatch) -> None:
        """Delete the keys of an entity that is being deleted."""
        for name in self.rows:
            if name[0] == entity:
                batch.delete(META, (_row(name),))

    def forget(self, entity: str) -> None:
        """Drop the keys of a deleted entity."""
        left = {name: content for name, content in self.rows.items() if name[0] != entity}
        if len(left) != len(self.rows):
            self.rows = left
            self.changed()


def _row(name: KeyName) -> str:
    return PREFIX + "/".join(name)


def _name(row: str) -> KeyName:
    entity, _, name = row.removeprefix(PREFIX).rpartition("/")
    return entity, name
