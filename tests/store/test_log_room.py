"""The file of SQLite's log is made longer ahead of the commits, which changes nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw
import pytest

from onibus.core.records import BLOCKS, WriteBatch
from onibus.store.conformance import batch
from onibus.store.log_room import FRAME_BYTES, GROWS_FROM, PIECE, ROOM_BYTES_MIN, LogRoom
from onibus.store.sqlite import SqliteStore


def rows(number: int) -> WriteBatch:
    return batch((BLOCKS, (number, bytes([number % 256]) * 9_000)))


def used(store: SqliteStore) -> int:
    """Return how many bytes of its file a log has in use."""
    return 32 + store._log_pages * FRAME_BYTES


def copied(path: Path, target: Path) -> Path:
    """Copy the files of a store that is open: what a kill would leave."""
    target.mkdir()
    for end in ("", "-wal", ".witness"):
        shutil.copyfile(f"{path}{end}", target / f"store{end}")
    return target / "store"


@pytest.mark.promise("B8")
def test_a_long_log_has_room_and_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    lengths = set()
    for number in range(1, 401):
        store.commit(rows(number))
        length = os.stat(f"{path}-wal").st_size
        if used(store) > GROWS_FROM + 64 * FRAME_BYTES:
            assert length > used(store)
            lengths.add(length)
        if number % 100 == 0:
            killed = SqliteStore(copied(path, tmp_path / f"at{number}"), "one")
            assert [row[0] for row in killed.scan(BLOCKS)] == list(range(1, number + 1))
            killed.commit(rows(number + 1))
            killed.close()
    assert 1 < len(lengths) < 40, "it grows by pieces, not with each of many commits"
    tail = Path(f"{path}-wal").read_bytes()[used(store) :]
    assert tail.strip(b"\0") == b""
    store.close()
    again = SqliteStore(path, "one")
    assert [row[0] for row in again.scan(BLOCKS)] == list(range(1, 401))
    again.close()


def test_a_short_log_is_left_as_it_is(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store", "one")
    for number in range(1, 6):
        store.commit(rows(number))
    assert os.stat(tmp_path / "store-wal").st_size < GROWS_FROM
    store.close()


def test_a_file_is_not_made_longer_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one", log_bytes_max=1 << 20)
    for number in range(1, 1_001):
        store.commit(rows(number))
        if number % 20 == 0:
            store.maintain()
    longest = (1 << 20) + 4 * len(PIECE)
    assert os.stat(f"{path}-wal").st_size < longest
    assert [row[0] for row in store.scan(BLOCKS)] == list(range(1, 1_001))
    store.maintain()
    store.maintain()
    assert os.stat(f"{path}-wal").st_size == 0, "what rests gives its log back"
    store.commit(rows(1_001))
    store.close()


def test_a_disk_without_room_for_it_takes_commits_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def full(*_: object) -> int:
        tried.append(1)
        raise OSError(28, "No space left on device")

    store = SqliteStore(tmp_path / "store", "one")
    write = os.pwrite
    for number in range(1, 301):
        monkeypatch.setattr(os, "pwrite", full)
        store.commit(rows(number))
        monkeypatch.setattr(os, "pwrite", write)
    assert len(tried) > 300, "the witness, and the room"
    assert [row[0] for row in store.scan(BLOCKS)] == list(range(1, 301))
    store.close()


def test_room_is_never_made_where_frames_are(tmp_path: Path) -> None:
    """Another connection may have written behind what the last commit knew of."""
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    for number in range(1, 300):
        store.commit(rows(number))
    known = store._log_pages
    store._checkpointer.execute("BEGIN IMMEDIATE")
    for number in range(1_000, 1_100):
        store._checkpointer.execute("INSERT INTO blocks VALUES (?, ?)", (number, b"x" * 9_000))
    store._checkpointer.execute("COMMIT")
    assert store._log_pages == known
    store.commit(rows(300))
    store._writer.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
    killed = SqliteStore(copied(path, tmp_path / "killed"), "one")
    expected = [*range(1, 301), *range(1_000, 1_100)]
    assert [row[0] for row in killed.scan(BLOCKS)] == expected
    killed.close()
    store.close()


def test_a_room_that_is_large_enough_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    pages = 2 * GROWS_FROM // FRAME_BYTES
    path.write_bytes(bytes(pages * FRAME_BYTES + ROOM_BYTES_MIN))
    room = LogRoom(os.fspath(path))
    room.provide(pages)
    assert path.stat().st_size == pages * FRAME_BYTES + ROOM_BYTES_MIN
    room.provide(pages + 1)
    assert path.stat().st_size == pages * FRAME_BYTES + ROOM_BYTES_MIN + len(PIECE)
    room.close()
