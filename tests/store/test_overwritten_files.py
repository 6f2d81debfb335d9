"""Files of an open store that another program overwrites or truncates in place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onibus.core.errors import Damaged, StoreFailed
from onibus.core.records import BLOCKS, WriteBatch
from onibus.store.conformance import batch, block
from onibus.store.connection import PAGE_BYTES
from onibus.store.log_room import FRAME_BYTES
from onibus.store.sqlite import SqliteStore

pytestmark = pytest.mark.promise("B8")

COMMITS_UNTIL_KILLED = """
import sys
from onibus.core.records import BLOCKS
from onibus.store.conformance import batch, block
from onibus.store.sqlite import SqliteStore

store = SqliteStore(sys.argv[1], "one")
for number in range(1, 10_000):
    store.commit(batch((BLOCKS, block(number))))
    print(number, flush=True)
    sys.stdin.readline()
"""


def commit(store: SqliteStore, *numbers: int) -> None:
    for number in numbers:
        store.commit(batch((BLOCKS, block(number))))


def merge(store: SqliteStore) -> None:
    """Merge the log as an idle store does."""
    store.maintain()
    store.maintain()


def overwrite(path: Path, content: bytes) -> None:
    """Write a file in place, as `cp` does."""
    with path.open("wb") as file:
        file.write(content)


@pytest.mark.parametrize("use", ["commit", "maintain", "probe"])
def test_a_main_file_that_was_overwritten_is_damage(tmp_path: Path, use: str) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    commit(store, 1)
    merge(store)
    old = path.read_bytes()
    commit(store, 2)
    merge(store)
    assert path.read_bytes() != old
    overwrite(path, old)
    with pytest.raises(Damaged, match="written by another program"):
        commit(store, 3) if use == "commit" else getattr(store, use)()
    with pytest.raises(StoreFailed):
        commit(store, 4)
    store.close()


def test_a_main_file_that_was_overwritten_is_not_merged_into(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one", log_bytes_max=0)
    commit(store, 1)
    merge(store)
    commit(store, *range(2, 50))
    overwrite(path, path.read_bytes())
    content = path.read_bytes()
    # A commit merges the rest that housekeeping left.
    store._move_rest = True
    with pytest.raises(Damaged, match="written by another program"):
        commit(store, 50)
    store.close()
    assert path.read_bytes() == content


def test_merges_of_the_store_itself_are_no_foreign_writes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store", "one", log_bytes_max=4 * FRAME_BYTES)
    for number in range(1, 40):
        commit(store, number)
        store.maintain()
        store.probe()
    merge(store)
    commit(store, 40)
    store.close()


def test_released_pages_are_no_foreign_writes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    # A longer log than SQLite leaves to a connection that may merge it.
    put, delete = WriteBatch(), WriteBatch()
    for number in range(1, 1_000):
        put.put(BLOCKS, (number, b"x" * PAGE_BYTES))
        delete.delete(BLOCKS, (number,))
    store.commit(put)
    store.commit(delete)
    merge(store)
    commit(store, 1)
    store.close()


def test_a_truncated_log_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    commit(store, 1, 2, 3)
    os.truncate(f"{path}-wal", FRAME_BYTES)
    with pytest.raises(Damaged, match="log was truncated"):
        commit(store, 4)
    store.close()
    with pytest.raises(Damaged):
        SqliteStore(path, "one", known=True)


def test_a_truncated_index_of_the_log_ends_the_process_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-c", COMMITS_UNTIL_KILLED, os.fspath(path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        committed = 0
        for line in other.stdout:
            committed = int(line)
            if committed == 5:
                os.truncate(f"{path}-shm", 0)
            other.stdin.write(b"\n")
            other.stdin.flush()
    # SQLite maps that file into memory: the system ends the process.
    assert other.returncode == -signal.SIGBUS
    assert committed >= 5
    store = SqliteStore(path, "one", known=True)
    assert [row[0] for row in store.scan(BLOCKS, ("block",))][:committed] == list(
        range(1, committed + 1)
    )
    store.close()
