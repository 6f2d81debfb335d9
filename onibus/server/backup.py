"""Backup: a copy of a data directory, taken while the bus runs; restore.py restores it.

A backup is one directory, whatever disks the stores are on:

    <name>.sqlite          each store, with its log merged and every page verified
    <name>.sqlite.blocks/  its large blocks
    backup.json            the `Manifest`, written last: without it the backup is incomplete

All stores are copied as of the same point in time (store/cut.py explains how). A restored bus has
the state of the bus after a power failure at that point: everything acknowledged before, and no
partial operation. It has nothing that happened later.

The copy contains everything that the bus has, including the secret of its lock tokens, so only its
owner can read it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
from xxhash import xxh3_128

from onibus.core.errors import Damaged, DiskNearlyFull, InvalidArgument, StoreFailed
from onibus.server.data_directory import Directory, Places, find_paths, missing, paths_of
from onibus.shard.disk_room import RESERVE_BYTES
from onibus.store.block_files import DirectoryFiles, check_file
from onibus.store.connection import (
    PAGE_BYTES,
    checksum_vfs,
    close,
    open_to_look,
    open_writer,
    translate,
)
from onibus.store.cut import Cut, StoreCut
from onibus.store.files import free_bytes, make_directory, sync_directory

if TYPE_CHECKING:
    from onibus.bus import Bus

MANIFEST = "backup.json"
FORMAT = 1
#: Pages copied at a time; commits continue between them.
_PAGES_A_STEP = 256
#: Block files written before they are synced together.
_FILES_A_STEP = 16
_CHUNK = 1 << 20

#: Called with the name of a store, the amount done and the total: pages during a backup, bytes
#: during verification and restore.
Progress = Callable[[str, int, int], None]


class StoreCopy(msgspec.Struct, kw_only=True):
    """A store in a backup."""

    name: str
    #: identity of the copied store, in hexadecimal
    identity: str
    #: number of its last commit
    position: int
    bytes: int
    #: XXH3 (128 bits) of the file
    digest: str
    #: number of its large blocks, and their bytes
    block_files: int
    block_bytes: int


class Manifest(msgspec.Struct, kw_only=True):
    """Contents of a backup."""

    format: int
    #: wall time of the copy, in milliseconds since 1970
    made_ms: int
    #: time for which commits were paused
    held_ms: float
    stores: list[StoreCopy]

    @property
    def bytes(self) -> int:
        return sum(store.bytes + store.block_bytes for store in self.stores)


# Making a backup


def backup(
    source: Bus | Directory,
    target: Directory,
    *,
    places: Places | None = None,
    progress: Progress | None = None,
    reserve_bytes: int = RESERVE_BYTES,
) -> Manifest:
    """Copy all stores of a bus, or of a data directory that may be in use, to an empty directory.

    Call it on a separate thread: it runs as long as the copy takes. `places` are the directories of
    stores outside the data directory. On a disk with a store, the copy leaves `reserve_bytes` free,
    as sends do; an open bus uses its own setting.
    """
    if isinstance(source, (str, os.PathLike)):
        paths = find_paths(source, places)
    else:
        paths, reserve_bytes = paths_of(source), source.broker.disk.reserve
    gone = missing(paths)
    if gone:
        raise InvalidArgument(f"{paths[gone[0]]} not found: name its directory with --store")
    root = Path(target).absolute()
    make_empty(root)
    room = Room(root, paths.values(), reserve_bytes)
    with contextlib.ExitStack() as unfinished, Cut(paths) as cut:
        unfinished.callback(_remove, root)
        room.require(sum(store.size() for store in cut.stores))
        manifest = Manifest(
            format=FORMAT,
            made_ms=time.time_ns() // 1_000_000,
            held_ms=round(cut.held_seconds * 1000, 3),
            stores=[],
        )
        for store in cut.stores:
            manifest.stores.append(_copy_store(store, root, room, progress))
        _write_manifest(root, manifest)
        unfinished.pop_all()
    return manifest


class Room:
    """Free space on the disk of a copy."""

    def __init__(self, target: Path, stores: Iterable[str], reserve_bytes: int) -> None:
        self._target = target
        device = os.stat(target).st_dev
        shared = any(os.stat(path).st_dev == device for path in stores)
        #: bytes to keep free for the stores on that disk
        self._kept = reserve_bytes if shared else 0

    def require(self, size: int) -> None:
        """Reject a copy, or its next piece, that does not fit."""
        free = free_bytes(str(self._target))
        if free - size < self._kept:
            raise DiskNearlyFull(
                f"not enough disk space at {self._target}: {free >> 20} MB free, of which "
                f"{self._kept >> 20} MB are reserved for stores, and the copy needs "
                f"{(size >> 20) + 1} MB more; it was removed: free some space, or use another disk"
            )


def _remove(root: Path) -> None:
    """Remove an incomplete copy, which is useless and takes space."""
    for entry in root.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def make_empty(*directories: Path) -> None:
    """Create directories; reject if one of them is not empty.

    Inspect all before creating any: one may be inside another.
    """
    for directory in directories:
        try:
            filled = directory.exists() and any(directory.iterdir())
        except OSError as error:
            raise InvalidArgument(f"cannot write to {directory}: {error}") from None
        if filled:
            raise InvalidArgument(f"{directory} is not empty: choose an empty directory")
    for directory in directories:
        try:
            make_directory(directory, 0o700)
        except OSError as error:
            raise InvalidArgument(f"cannot write to {directory}: {error}") from None


def _copy_store(store: StoreCut, root: Path, room: Room, progress: Progress | None) -> StoreCopy:
    path = str(root / f"{store.name}.sqlite")
    try:
        _copy_pages(store, path, room, progress)
        _verify_pages(path)
        count, size = _copy_files(store, path, room)
    except (apsw.Error, OSError) as error:
        raise translate(error, f"copying {store.path}") from error
    return StoreCopy(
        name=store.name,
        identity=store.identity.hex(),
        position=store.position,
        bytes=os.stat(path).st_size,
        digest=digest_of(path),
        block_files=count,
        block_bytes=size,
    )


def _copy_pages(store: StoreCut, path: str, room: Room, progress: Progress | None) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    copy = open_writer(path, None)
    try:
        # SQLite adds checksums to pages once the first page says that they have them.
        copy.pragma("journal_mode", "OFF")
        copy.execute("CREATE TABLE placeholder (value)")
        with copy.backup("main", store.reader, "main") as pages:
            while not pages.done:
                room.require(_PAGES_A_STEP * PAGE_BYTES)
                pages.step(_PAGES_A_STEP)
                if progress is not None:
                    progress(store.name, pages.page_count - pages.remaining, pages.page_count)
    finally:
        close(copy)


def _verify_pages(path: str) -> None:
    """Read a copy back page by page, and merge its log."""
    copy = apsw.Connection(path, apsw.SQLITE_OPEN_READWRITE, checksum_vfs())
    try:
        found = copy.execute("PRAGMA quick_check").get
        checked = copy.pragma("checksum_verification")
    finally:
        close(copy)
    if found != "ok" or checked != "1":
        raise StoreFailed(f"{path}: the copy is damaged: {found}")
    sync_file(path)


def _copy_files(store: StoreCut, path: str, room: Room) -> tuple[int, int]:
    rows = store.file_rows()
    size = 0
    with contextlib.closing(DirectoryFiles(path + ".blocks")) as files:
        for start in range(0, len(rows), _FILES_A_STEP):
            step = rows[start : start + _FILES_A_STEP]
            some = [(block, store.read_file(block, expected)) for block, expected in step]
            length = sum(len(payload) for _, payload in some)
            room.require(length)
            files.write(some)
            size += length
    return len(rows), size


def _write_manifest(root: Path, manifest: Manifest) -> None:
    """Complete a backup: sync all of it, then write its manifest."""
    sync_directory(str(root))
    made = root / f"{MANIFEST}.part"
    made.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    sync_file(str(made))
    made.rename(root / MANIFEST)
    sync_directory(str(root))


# Reading a backup


def read_manifest(source: Directory) -> Manifest:
    """Return the manifest of a backup."""
    path = Path(source) / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise InvalidArgument(
            f"{source} is not a backup, or not a complete one: it has no {MANIFEST}"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise Damaged(f"cannot read {path}: {error}") from None
    if manifest.format > FORMAT:
        raise InvalidArgument(f"{path} has format {manifest.format}: use a newer version of onibus")
    return manifest


def verify(source: Directory, progress: Progress | None = None) -> Manifest:
    """Compare every byte of a backup with its manifest and its rows."""
    manifest = read_manifest(source)
    for store in manifest.stores:
        path = str(Path(source) / f"{store.name}.sqlite")
        done = counted(store, progress)
        if not os.path.isfile(path) or digest_of(path, done) != store.digest:
            raise Damaged(f"{path} differs from what the backup wrote")
        rows = file_rows(path)
        if len(rows) != store.block_files:
            raise Damaged(f"{path} has {len(rows)} large blocks, not {store.block_files}")
        for block, expected in rows:
            done(len(read_file(path, block, expected)))
    return manifest


def counted(store: StoreCopy, progress: Progress | None) -> Callable[[int], None]:
    """Return a callback that counts the finished bytes of a store and reports them."""
    total = store.bytes + store.block_bytes
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(store.name, done, total)

    return count


def file_rows(path: str) -> list[tuple[int, int]]:
    """Return the large blocks of a store in a backup, each with the fingerprint of its file."""
    reader = open_to_look(path)
    try:
        statement = "SELECT block, payload FROM blocks WHERE typeof(payload) = 'integer'"
        rows: Any = reader.execute(statement).fetchall()
    except apsw.Error as error:
        raise translate(error, f"reading {path}") from error
    finally:
        close(reader)
    return list(rows)


def read_file(path: str, block: int, expected: int) -> bytes:
    """Return the content of a large block's file."""
    try:
        payload = Path(f"{path}.blocks", str(block)).read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{path}.blocks/{block} is missing") from None
    check_file(block, payload, expected)
    return payload


def digest_of(path: str, done: Callable[[int], None] = lambda size: None) -> str:
    """Return the XXH3 (128 bits) of a file, in hexadecimal."""
    digest = xxh3_128()
    for chunk in chunks(path):
        digest.update(chunk)
        done(len(chunk))
    return digest.hexdigest()


def chunks(path: str) -> Iterator[bytes]:
    """Yield a file piece by piece."""
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def sync_file(path: str) -> None:
    """Sync a file to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
