"""Large blocks are files of their own: durable before their rows, gone after them, checked."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from onibus.core.errors import Damaged, StoreFailed
from onibus.core.records import BLOCKS, COUNTERS, WriteBatch
from onibus.store.block_files import (
    ALIGNED_BYTES,
    FILE_BYTES_MIN,
    FILES_AT_A_TIME,
    HEAD_BYTES,
    STAGING_BYTES,
    DirectoryFiles,
)
from onibus.store.sqlite import SqliteStore

LARGE = os.urandom(FILE_BYTES_MIN)
SMALL = LARGE[:-1]


def put(store: SqliteStore, *blocks: tuple[int, bytes | None]) -> None:
    """Commit blocks; None deletes one."""
    batch = WriteBatch()
    for block, payload in blocks:
        if payload is None:
            batch.delete(BLOCKS, (block,))
        else:
            batch.put(BLOCKS, (block, payload))
    store.commit(batch)


def files(path: Path) -> list[str]:
    return sorted(os.listdir(f"{path}.blocks"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_only_large_blocks_are_files(path: Path) -> None:
    store = SqliteStore(path, "one")
    put(store, (1, SMALL))
    assert not os.path.exists(f"{path}.blocks")
    before = store.size()
    put(store, (2, LARGE), (3, LARGE + b"3"))
    assert files(path) == ["2", "3"]
    assert store.size() - before >= 2 * len(LARGE)
    for _ in range(2):
        assert store.read(BLOCKS, (2,)) == (2, LARGE)
        assert list(store.scan(BLOCKS)) == [(1, SMALL), (2, LARGE), (3, LARGE + b"3")]
        assert list(store.scan(BLOCKS, ("block",))) == [(1,), (2,), (3,)]
        store.close()
        store = SqliteStore(path, "one")
    store.close()


def test_a_file_goes_with_its_row(path: Path) -> None:
    store = SqliteStore(path, "one")
    put(store, (1, LARGE), (2, LARGE), (3, LARGE))
    put(store, (1, None), (2, SMALL), (3, LARGE + b"again"))
    assert files(path) == ["3"]
    assert store.read(BLOCKS, (1,)) is None
    assert store.read(BLOCKS, (2,)) == (2, SMALL)
    assert store.read(BLOCKS, (3,)) == (3, LARGE + b"again")
    store.close()


def test_what_a_crash_left_behind_is_removed(path: Path) -> None:
    store = SqliteStore(path, "one")
    put(store, (1, LARGE), (2, SMALL))
    store.close()
    left = Path(f"{path}.blocks")
    (left / "2").write_bytes(LARGE)
    (left / "7").write_bytes(LARGE[:100])
    (left / "notes.txt").write_bytes(b"somebody's")
    store = SqliteStore(path, "one")
    assert files(path) == ["1", "notes.txt"]
    assert list(store.scan(BLOCKS)) == [(1, LARGE), (2, SMALL)]
    store.close()


@pytest.mark.parametrize("at", [0, HEAD_BYTES // 2, HEAD_BYTES - 1])
def test_a_file_that_is_not_the_one_meant_is_damage(path: Path, at: int) -> None:
    store = SqliteStore(path, "one")
    put(store, (1, LARGE))
    file = Path(f"{path}.blocks") / "1"
    content = bytearray(LARGE)
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match="block 1"):
        store.read(BLOCKS, (1,))
    with pytest.raises(Damaged, match="block 1"):
        list(store.scan(BLOCKS))
    file.write_bytes(LARGE[:-1])
    with pytest.raises(Damaged, match="block 1"):
        store.read(BLOCKS, (1,))
    store.close()


def test_a_missing_file_leaves_no_payload(path: Path) -> None:
    store = SqliteStore(path, "one")
    put(store, (1, LARGE))
    os.unlink(f"{path}.blocks/1")
    row = store.read(BLOCKS, (1,))
    assert row is not None
    assert not isinstance(row[-1], bytes)
    store.close()


def test_a_file_that_cannot_be_written_fails_the_commit(path: Path) -> None:
    store = SqliteStore(path, "one")
    put(store, (1, LARGE))
    os.mkdir(f"{path}.blocks/2")
    batch = WriteBatch()
    batch.put(BLOCKS, (2, LARGE))
    batch.put(COUNTERS, (1, 2, 3, 4, 5, 6, 7, 8, 9))
    with pytest.raises(StoreFailed):
        store.commit(batch)
    with pytest.raises(StoreFailed):
        store.read(BLOCKS, (1,))
    store.close()
    os.rmdir(f"{path}.blocks/2")
    store = SqliteStore(path, "one")
    assert list(store.scan(BLOCKS)) == [(1, LARGE)]
    assert list(store.scan(COUNTERS)) == []
    store.close()


@pytest.mark.parametrize("direct", [True, False], ids=["past the cache", "through the cache"])
@pytest.mark.parametrize("more", [-1, 0, 1, ALIGNED_BYTES, STAGING_BYTES + 17])
def test_files_of_every_length(path: Path, direct: bool, more: int) -> None:
    files = DirectoryFiles(f"{path}.blocks")
    if not direct:
        files._direct = 0
    content = os.urandom(STAGING_BYTES + more)
    files.write([(1, content), (2, content[:5])])
    files.write([(2, content[:4])])
    assert files.read(1) == content
    assert files.read(2) == content[:4]
    assert files.sizes() == {1: len(content), 2: 4}
    files.remove(1)
    files.remove(1)
    assert files.sizes() == {2: 4}
    with pytest.raises(FileNotFoundError):
        files.read(1)
    files.close()


def test_a_commit_of_many_large_blocks_opens_few_files(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are shared with connections: a commit must not need more the larger it is."""
    files, sync, most = DirectoryFiles(f"{path}.blocks"), os.fsync, 0

    def open_now() -> int:
        """Return how many files of this directory are open; other tests' files do not count."""
        found = 0
        for handle in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):
                found += os.readlink(f"/dev/fd/{handle}").startswith(f"{path}.blocks")
        return found

    def noting(handle: int) -> None:
        nonlocal most
        most = max(most, open_now())
        sync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    blocks = [(number, b"%d" % number * 100) for number in range(100)]
    files.write(blocks)
    assert files.sizes() == {number: len(content) for number, content in blocks}
    # The directory is synced, too.
    assert 0 < most <= FILES_AT_A_TIME + 1
    files.close()


def test_a_file_system_without_a_way_past_the_cache(path: Path) -> None:
    files = DirectoryFiles(f"{path}.blocks")
    # What such a file system answers is what Linux answers to a flag that asks for a directory.
    files._direct = os.O_DIRECTORY
    files.write([(1, LARGE)])
    assert files.read(1) == LARGE
    assert files._direct == 0
    files.close()
