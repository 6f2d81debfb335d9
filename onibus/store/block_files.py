"""Large blocks in files of their own, beside a store's database.

A large block would be written twice through SQLite, once to its log and once to its file, in pages;
and read in pages again. As a file it is written once and read whole. For a store at `<path>` the
block `n` is the file `<path>.blocks/n`; its row in `blocks` has the XXH3 (64 bits) of the file's
bytes, less 2 to the 63rd, in place of the payload.

Rules:
1. A file is synced, and its name too, before the commit begins that makes its row. So a row never
   speaks of a file that a power cut takes away.
2. A file goes after the commit has returned that deletes its row. What a crash leaves between the
   two, or before the first, is a file without a row, removed at the next opening.
3. Files never change. A file that is missing, or has other bytes than its row says, is damage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, cast

from xxhash import xxh3_64_intdigest

from onibus.core.errors import Damaged
from onibus.core.records import BLOCKS, Row, WriteBatch
from onibus.store.files import sync_directory

#: Payloads from this length on are files: below, one more sync costs more than writing twice.
FILE_BYTES_MIN = 512 << 10


class BlockFiles(Protocol):
    """Where large blocks are kept."""

    def sizes(self) -> dict[int, int]:
        """Return the files that are there, and their lengths."""

    def write(self, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Write files, and return when they are durable under their names."""

    def read(self, block: int) -> bytes:
        """Return a file's bytes; raise FileNotFoundError where there is none."""

    def remove(self, block: int) -> None:
        """Remove a file, soon or late."""


class DirectoryFiles:
    """Files in a directory, which is made when the first of them is."""

    def __init__(self, path: str) -> None:
        self._directory = path
        self._made = os.path.isdir(path)

    def sizes(self) -> dict[int, int]:
        if not self._made:
            return {}
        with os.scandir(self._directory) as entries:
            # What somebody else has put there is left alone.
            return {int(e.name): e.stat().st_size for e in entries if e.name.isdecimal()}

    def write(self, blocks: Iterable[tuple[int, bytes]]) -> None:
        if not self._made:
            os.makedirs(self._directory, exist_ok=True)
            sync_directory(os.path.dirname(self._directory))
            self._made = True
        with contextlib.ExitStack() as opened:
            handles = []
            for block, payload in blocks:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                handle = os.open(self._name(block), flags, 0o644)
                opened.callback(os.close, handle)
                handles.append(handle)
                left = memoryview(payload)
                while left:
                    left = left[os.write(handle, left) :]
            # All are written before the first is waited for: the disk has them at a time.
            for handle in handles:
                os.fsync(handle)
        sync_directory(self._directory)

    def read(self, block: int) -> bytes:
        with open(self._name(block), "rb", buffering=0) as file:
            return file.read()

    def remove(self, block: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name(block))

    def _name(self, block: int) -> str:
        return os.path.join(self._directory, str(block))


class LargeBlocks:
    """The blocks of one store that are files."""

    def __init__(self, files: BlockFiles | None, bytes_min: int) -> None:
        #: None on a disk that has no room for them: all blocks stay in their rows
        self._files = files
        self._bytes_min = bytes_min
        self._sizes: dict[int, int] = {}

    def open(self, read: Callable[[int], Row | None]) -> None:
        """Take note of the files that have a row, and remove those that a crash left behind."""
        if self._files is None:
            return
        for block, size in self._files.sizes().items():
            row = read(block)
            if row is not None and isinstance(row[-1], int):
                self._sizes[block] = size
            else:
                self._files.remove(block)

    def write(self, batch: WriteBatch) -> dict[Row, Row | None]:
        """Write the large blocks of a batch; return the rows that stand for them, by their keys."""
        if self._files is None:
            return {}
        large = [
            cast("tuple[int, bytes]", row)
            for row in batch.tables.get(BLOCKS, {}).values()
            if row is not None and isinstance(row[-1], bytes) and len(row[-1]) >= self._bytes_min
        ]
        if large:
            self._files.write(large)
            self._sizes.update((block, len(payload)) for block, payload in large)
        return {(block,): (block, fingerprint(payload)) for block, payload in large}

    def committed(self, batch: WriteBatch, written: Mapping[Row, Row | None]) -> None:
        """A batch is durable: remove the files of blocks that it has deleted or replaced."""
        if self._files is not None and self._sizes:
            for key in batch.tables.get(BLOCKS, {}):
                block = cast("int", key[0])
                if key not in written and self._sizes.pop(block, None) is not None:
                    self._files.remove(block)

    def resolve(self, row: Row) -> Row:
        """Return a row of `blocks` with its payload; as it is where no file has it."""
        block, expected = row
        if self._files is None or not isinstance(expected, int) or not isinstance(block, int):
            return row
        try:
            payload = self._files.read(block)
        except FileNotFoundError:
            return row
        if fingerprint(payload) != expected:
            raise Damaged(f"the file of block {block} is not what was written")
        return block, payload

    def size(self) -> int:
        return sum(self._sizes.values())


def fingerprint(payload: bytes) -> int:
    """Return what a row has of a payload that is a file."""
    return xxh3_64_intdigest(payload) - (1 << 63)
