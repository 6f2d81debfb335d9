"""The trace of a run: every command, answer and commit, one per line, and the digest of all lines.

A line starts with the number of the command and both clocks of the machine. A seed gives the same
trace, byte for byte, in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from onibus.core.records import Value, WriteBatch
from onibus.directory.entity import Entity
from onibus.shard.partition import ShardPartition
from onibus.store.memory import MemoryStore

Write = Callable[[str], object]


class Trace:
    """The digest of what has happened so far; `write`, if given, gets every line."""

    def __init__(self, write: Write | None = None) -> None:
        self._digest = blake2b(digest_size=16)
        self._write = write

    def add(self, line: str) -> None:
        """Append a line."""
        line = f"{line}\n"
        self._digest.update(line.encode())
        if self._write is not None:
            self._write(line)

    def digest(self) -> str:
        """Return the digest of all lines, as hex."""
        return self._digest.hexdigest()


class TracedStore(MemoryStore):
    """A store that reports the digest of what it is about to write, rows in their order."""

    def __init__(self, name: str, tables: Any, note: Callable[[str], None]) -> None:
        super().__init__(name, tables)
        self._note = note

    def commit(self, batch: WriteBatch) -> None:
        digest = blake2b(digest_size=8)
        for table, rows in batch.tables.items():
            written = {key: row and tuple(map(_plain, row)) for key, row in rows.items()}
            digest.update(f"{table.name} {written!r}".encode())
        self._note(f"commit {self.name} {digest.hexdigest()}")
        super().commit(batch)


def _plain(value: Value) -> Value:
    return bytes(value) if isinstance(value, memoryview) else value


def shown(value: Any) -> str:
    """Return an answer as the trace shows it."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, Entity):
        return value.name
    if isinstance(value, ShardPartition):
        return str(value.index)
    return repr(value)
