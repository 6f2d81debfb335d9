"""Numbered pieces of state, written and read as a whole.

A growing state is not kept as one value: every change would rewrite all of it. Nor is it one value
per row: reading each costs more than everything else. So it is cut into chunks, each written once,
read when needed, and dropped when it is used up.
"""

from __future__ import annotations

from collections.abc import Callable


class Chunks:
    """The chunks put since the last `changes`, over those that its keeper stores."""

    __slots__ = ("_dropped", "_put", "_read", "next_chunk")

    def __init__(self, read: Callable[[int], bytes], next_chunk: int = 0) -> None:
        self._read = read
        self._put: dict[int, bytes] = {}
        self._dropped: list[int] = []
        self.next_chunk = next_chunk

    def put(self, content: bytes) -> int:
        """Keep a chunk; return its number."""
        chunk = self.next_chunk
        self.next_chunk += 1
        self._put[chunk] = content
        return chunk

    def read(self, chunk: int) -> bytes:
        content = self._put.get(chunk)
        return self._read(chunk) if content is None else content

    def drop(self, chunk: int) -> None:
        """Drop a chunk."""
        if self._put.pop(chunk, None) is None:
            self._dropped.append(chunk)

    def kept_by(self, read: Callable[[int], bytes]) -> None:
        """Read the chunks with this function from now on."""
        self._read = read

    def changes(self) -> tuple[dict[int, bytes], list[int]]:
        """Return the chunks to keep and to delete since the last call."""
        put, dropped = self._put, self._dropped
        self._put, self._dropped = {}, []
        return put, dropped


def nobody(chunk: int) -> bytes:
    """The keeper of a state that has kept nothing yet."""
    raise KeyError(chunk)
