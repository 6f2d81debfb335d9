"""The core's only access to the store: it reads pages that never change."""

from __future__ import annotations

from typing import Protocol

from onibus.core.block import Block
from onibus.core.marks import MarkRow


class IdPages(Protocol):
    """What remembering ids needs of a store."""

    def read_ids(self, chunk: int) -> bytes:
        """Return the entries of one committed `id_chunks` row."""

    def new_id(self) -> int:
        """Return an id no page of this store has had (blocks, runs, chunks, recent ids)."""


class Pages(IdPages, Protocol):
    """Reads of committed, immutable pages; the same id always gives the same bytes."""

    def read_block(self, block: int) -> Block:
        """Return a committed block, verified. Raise `Damaged` when its bytes are not as written."""

    def read_staged(self, block: int) -> bytes:
        """Return the committed bytes of a block that was staged, without its index."""

    def keep(self, block: int, payload: bytes) -> None:
        """Take note of a block that was committed just now, and may be read soon."""

    def forget(self, block: int) -> None:
        """Take note that a block is being deleted, and is not read again."""

    def read_part(self, work: int, partition: int, piece: int) -> bytes | None:
        """Return the content of a committed `staged` row; None if it is gone."""

    def read_mark(self, partition: int, subscription: int, ordinal: int) -> MarkRow:
        """Return the committed row of a mark that the store had when it was opened."""
