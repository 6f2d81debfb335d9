"""Large blocks in separate files next to a store's database.

Through SQLite, a large block would be written twice in pages, to its log and to its file, and read
in pages. As a separate file it is written once and read at once. For a store at `<path>`, block `n`
is the file `<path>.blocks/n`. Its row in `blocks` has a fingerprint of the file instead of the
payload: the XXH3 (64 bits) of its first 4,096 bytes, with its length as the seed, minus 2 to the
63rd. The fingerprint distinguishes one file from another. The checksums of the block, in those
first bytes, protect the rest; every reader verifies them.

Files bypass the system's cache where possible. That is faster, the bytes reach the disk sooner, and
other data stay in the cache.

Rules:
1. A file and its name are synced before the commit that creates its row begins. So no row refers to
   a file that a power cut removes.
2. A file is removed after the commit that deletes its row. A crash in between leaves a file without
   a row, which the next opening removes.
3. Files never change. A missing file, or one that does not match its row, is damage.
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

from onibus.core.block import verify
from onibus.core.errors import Damaged
from onibus.core.records import BLOCKS, LARGE_VALUES, Row, WriteBatch
from onibus.store.files import sync_directory

#: Payloads from this length on are files: below it, another sync costs more than writing twice.
FILE_BYTES_MIN = 512 << 10
#: Bytes covered by a fingerprint.
HEAD_BYTES = 4_096
SYNCS_AT_A_TIME = 4
#: Block files open at once, whatever the size of a commit: they share the limit of open files.
FILES_AT_A_TIME = 16
#: Bytes written at once past the cache, and the alignment of addresses and lengths there.
STAGING_BYTES = 4 << 20
ALIGNED_BYTES = 4_096

Payload = bytes | memoryview

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class BlockFiles(Protocol):
    """A place for large blocks."""

    def sizes(self) -> dict[int, int]:
        """Return the existing files, and their lengths."""

    def write(self, blocks: Iterable[tuple[int, Payload]]) -> None:
        """Write files; return once they are durable under their names."""

    def read(self, block: int) -> bytes:
        """Return the bytes of a file; raise FileNotFoundError if it does not exist."""

    def remove(self, block: int) -> None:
        """Remove a file, now or later."""

    def close(self) -> None:
        """Release everything; the files stay."""


class DirectoryFiles:
    """Files in a directory, which is created with the first of them."""

    def __init__(self, path: str) -> None:
        self._directory = path
        self._made = os.path.isdir(path)
        #: runs several syncs at a time, which the disk then combines
        self._syncing: ThreadPoolExecutor | None = None
        #: the flag that opens a file past the system's cache, or 0 if unsupported
        self._direct: int = getattr(os, "O_DIRECT", 0)
        self._staging: memoryview | None = None

    def sizes(self) -> dict[int, int]:
        if not self._made:
            return {}
        with os.scandir(self._directory) as entries:
            # Leave files of other programs alone.
            return {int(e.name): e.stat().st_size for e in entries if e.name.isdecimal()}

    def write(self, blocks: Iterable[tuple[int, Payload]]) -> None:
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

    def _write(self, name: str, payload: Payload) -> int:
        """Write a file; return it open, to be synced."""
        if self._direct:
            try:
                return self._write_direct(name, payload)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # This file system does not support it.
                self._direct = 0
        handle = os.open(name, _NEW, 0o644)
        try:
            _write_all(handle, memoryview(payload))
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _write_direct(self, name: str, payload: Payload) -> int:
        """Write a file past the system's cache, through reusable aligned pages."""
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
        """Sync files, and the directory with their names."""
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
        #: None on a disk without space for them: all blocks stay in their rows
        self._files = files
        self._bytes_min = bytes_min
        self._sizes: dict[int, int] = {}

    def open(self, read: Callable[[int], Row | None]) -> None:
        """Record the files that have a row, and remove those that a crash left behind."""
        if self._files is None:
            return
        for block, size in self._files.sizes().items():
            row = read(block)
            if row is not None and isinstance(row[-1], int):
                self._sizes[block] = size
            else:
                self._files.remove(block)

    def write(self, batch: WriteBatch) -> dict[Row, Row | None]:
        """Write the large blocks of a batch; return the rows that replace them, by key."""
        if self._files is None:
            return {}
        large = [
            cast("tuple[int, Payload]", row)
            for row in batch.tables.get(BLOCKS, {}).values()
            if row is not None
            and isinstance(row[-1], LARGE_VALUES)
            and len(row[-1]) >= self._bytes_min
        ]
        if large:
            self._files.write(large)
            self._sizes.update((block, len(payload)) for block, payload in large)
        return {(block,): (block, _fingerprint(payload)) for block, payload in large}

    def committed(self, batch: WriteBatch, written: Mapping[Row, Row | None]) -> None:
        """Remove the files of deleted or replaced blocks, once the batch is durable."""
        if self._files is not None and self._sizes:
            for key in batch.tables.get(BLOCKS, {}):
                block = cast("int", key[0])
                if key not in written and self._sizes.pop(block, None) is not None:
                    self._files.remove(block)

    def resolve(self, row: Row) -> Row:
        """Return a row of `blocks` with its payload; unchanged if it is not a file."""
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


def _fingerprint(payload: Payload) -> int:
    """Return the fingerprint of a payload that is a file."""
    return xxh3_64_intdigest(payload[:HEAD_BYTES], len(payload)) - (1 << 63)


def check_file(block: int, payload: bytes, expected: int) -> None:
    """Reject a file that does not match its row, or whose bytes changed."""
    if _fingerprint(payload) != expected:
        raise Damaged(f"the file of block {block} differs from what was written")
    verify(payload)
