"""Large blocks in files of their own, beside a store's database.

A large block would be written twice through SQLite, once to its log and once to its file, in pages;
and read in pages again. As a file it is written once and read whole. For a store at `<path>` the
block `n` is the file `<path>.blocks/n`; its row in `blocks` has a fingerprint of the file in place
of the payload: the XXH3 (64 bits) of its first 4,096 bytes, with its length as the seed, less 2 to
the 63rd. It tells one file from another. What lies behind is guarded by the checksums that a block
has of its own, in those first bytes, and which whoever reads it looks at.

They are written past the system's cache where that can be done: it is faster, the disk has them
sooner, and what others have in the cache stays there.

Rules:
1. A file is synced, and its name too, before the commit begins that makes its row. So a row never
   speaks of a file that a power cut takes away.
2. A file goes after the commit has returned that deletes its row. What a crash leaves between the
   two, or before the first, is a file without a row, removed at the next opening.
3. Files never change. A file that is missing, or is not the one that its row means, is damage.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from typing import Protocol, cast

from xxhash import xxh3_64_intdigest

from onibus.core.block import Block
from onibus.core.errors import Damaged
from onibus.core.records import BLOCKS, Row, WriteBatch
from onibus.store.files import sync_directory

#: Payloads from this length on are files: below, one more sync costs more than writing twice.
FILE_BYTES_MIN = 512 << 10
#: What a fingerprint is made of.
HEAD_BYTES = 4_096
SYNCS_AT_A_TIME = 4
#: Block files open at once, however many a commit writes: the limit of open files is shared.
FILES_AT_A_TIME = 16
#: What is written at once past the cache, and what addresses and lengths are multiples of there.
STAGING_BYTES = 4 << 20
ALIGNED_BYTES = 4_096

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


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

    def close(self) -> None:
        """Let go of everything; files stay."""


class DirectoryFiles:
    """Files in a directory, which is made when the first of them is."""

    def __init__(self, path: str) -> None:
        self._directory = path
        self._made = os.path.isdir(path)
        #: waits for several syncs at a time, which the disk then does as one
        self._syncing: ThreadPoolExecutor | None = None
        #: the flag that opens a file past the system's cache, 0 where there is no such way
        self._direct: int = getattr(os, "O_DIRECT", 0)
        self._staging: memoryview | None = None

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
        left = iter(blocks)
        while some := list(islice(left, FILES_AT_A_TIME)):
            with contextlib.ExitStack() as opened:
                handles = []
                for block, payload in some:
                    handle = self._write(self._name(block), payload)
                    opened.callback(os.close, handle)
                    handles.append(handle)
                self._sync(handles)

    def _write(self, name: str, payload: bytes) -> int:
        """Write a file; return it open, and to be synced."""
        if self._direct:
            try:
                return self._write_direct(name, payload)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # This file system has no such way.
                self._direct = 0
        handle = os.open(name, _NEW, 0o644)
        try:
            _write_all(handle, memoryview(payload))
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _write_direct(self, name: str, payload: bytes) -> int:
        """Write a file past the system's cache, through pages of our own that are used again."""
        if self._staging is None:
            self._staging = memoryview(mmap.mmap(-1, STAGING_BYTES))
        handle = os.open(name, _NEW | self._direct, 0o644)
        try:
            content = memoryview(payload)
            for start in range(0, len(content), STAGING_BYTES):
                some = content[start : start + STAGING_BYTES]
                self._staging[: len(some)] = some
                _write_all(handle, self._staging[: len(some) + -len(some) % ALIGNED_BYTES])
            os.ftruncate(handle, len(payload))
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _sync(self, handles: list[int]) -> None:
        """Sync files, and the directory that has their names."""
        if self._syncing is None:
            self._syncing = ThreadPoolExecutor(SYNCS_AT_A_TIME, "block-files")
        syncs = [self._syncing.submit(os.fsync, handle) for handle in handles]
        try:
            sync_directory(self._directory)
        finally:
            wait(syncs)
        for sync in syncs:
            sync.result()

    def close(self) -> None:
        if self._syncing is not None:
            self._syncing.shutdown()
            self._syncing = None

    def read(self, block: int) -> bytes:
        with open(self._name(block), "rb", buffering=0) as file:
            return file.read()

    def remove(self, block: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name(block))

    def _name(self, block: int) -> str:
        return os.path.join(self._directory, str(block))


def _write_all(handle: int, content: memoryview) -> None:
    while content:
        content = content[os.write(handle, content) :]


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
        return {(block,): (block, _fingerprint(payload)) for block, payload in large}

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
        if _fingerprint(payload) != expected:
            raise Damaged(f"the file of block {block} differs from what was written")
        return block, payload

    def size(self) -> int:
        return sum(self._sizes.values())

    def close(self) -> None:
        if self._files is not None:
            self._files.close()


def _fingerprint(payload: bytes) -> int:
    """Return what a row has of a payload that is a file."""
    return xxh3_64_intdigest(payload[:HEAD_BYTES], len(payload)) - (1 << 63)


def check_file(block: int, payload: bytes, expected: int) -> None:
    """Refuse a file that is not the one its row means, or has other bytes than were written."""
    if _fingerprint(payload) != expected:
        raise Damaged(f"the file of block {block} differs from what was written")
    Block(payload).verify()
