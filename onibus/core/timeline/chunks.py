"""Numbered pieces of state, written and read as a whole.

A state that grows is not one value: who keeps it would have to write all of it for every change.
Nor is it a value for each row: asking for each costs more than the rest of the work. So it is cut
into chunks, each written once, read when needed, and dropped when it is used up.
"""

from __future__ import annotations

from collections.abc import Callable


class Chunks:
    """What was put since the last change that was taken, before what its keeper has."""

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
        """Let go of a chunk."""
        if self._put.pop(chunk, None) is None:
            self._dropped.append(chunk)

    def kept_by(self, read: Callable[[int], bytes]) -> None:
        """Take note of who has the chunks from now on."""
        self._read = read

    def changes(self) -> tuple[dict[int, bytes], list[int]]:
        """Return what to keep and what to delete, since this was asked last."""
        put, dropped = self._put, self._dropped
        self._put, self._dropped = {}, []
        return put, dropped


def nobody(chunk: int) -> bytes:
    """The keeper of a state that has kept nothing yet."""
    raise KeyError(chunk)
