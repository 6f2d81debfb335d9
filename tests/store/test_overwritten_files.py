"""Files of an open store that another program overwrites or truncates in place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from onibus.core.errors import Damaged, StoreFailed
from onibus.core.records import BLOCKS, WriteBatch
from onibus.store import sqlite
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
    with path.open("r+b") as file:
        file.truncate(len(content))
        file.write(content)


def refuses_everything(store: SqliteStore) -> bool:
    with pytest.raises(StoreFailed):
        commit(store, 1_000)
    store.close()
    return True


def test_an_older_copy_of_the_main_file_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    commit(store, 1)
    merge(store)
    old = path.read_bytes()
    commit(store, 2)
    merge(store)
    assert path.read_bytes() != old
    overwrite(path, old)
    with pytest.raises(Damaged, match="overwritten by another program: it is at commit 1, not 2"):
        store.maintain()
    assert refuses_everything(store)


@pytest.mark.parametrize("ask", ["maintain", "probe"])
@pytest.mark.parametrize("what", ["zeros", "text", "nothing", "half of it"])
def test_a_main_file_that_is_no_database_is_damage(tmp_path: Path, what: str, ask: str) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    commit(store, *range(1, 50))
    merge(store)
    size = path.stat().st_size
    content = {"zeros": bytes(size), "text": b"x" * size, "nothing": b""}
    overwrite(path, content.get(what, path.read_bytes()[: size // 2]))
    with pytest.raises(Damaged, match="by another program"):
        getattr(store, ask)()
    assert refuses_everything(store)


def test_a_page_of_another_time_is_damage_although_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    commit(store, *range(1, 200))
    merge(store)
    content = path.read_bytes()
    pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
    # The checksum in each page is right: only the order is not.
    overwrite(path, b"".join([pages[0], *pages[:0:-1]]))
    with pytest.raises(Damaged):
        store.maintain()
    assert refuses_everything(store)


def test_a_merge_does_not_hide_what_another_program_wrote(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    commit(store, *range(1, 200))
    merge(store)
    content = path.read_bytes()
    commit(store, 200)
    overwrite(path, content[: 2 * PAGE_BYTES] + bytes(len(content) - 2 * PAGE_BYTES))
    # A commit merges the rest that housekeeping left.
    store._move_rest = True
    commit(store, 201)
    with pytest.raises(Damaged):
        store.maintain()
    assert refuses_everything(store)


def test_a_file_that_was_only_touched_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    commit(store, *range(1, 50))
    for number in range(50, 60):
        os.utime(path)
        overwrite(path, path.read_bytes())
        store.maintain()
        store.probe()
        commit(store, number)
    assert len(list(store.scan(BLOCKS, ("block",)))) == 59
    store.close()


def test_the_store_never_suspects_its_own_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[object] = []
    monkeypatch.setattr(sqlite, "check_pages", checks.append)
    store = SqliteStore(tmp_path / "store", "one", log_bytes_max=4 * FRAME_BYTES)
    put, delete = WriteBatch(), WriteBatch()
    for number in range(1_000, 2_000):
        put.put(BLOCKS, (number, b"x" * PAGE_BYTES))
        delete.delete(BLOCKS, (number,))
    ended = threading.Event()
    failed: list[BaseException] = []

    def commits() -> None:
        try:
            for number in range(1, 300):
                commit(store, number)
            store.commit(put)
            store.commit(delete)
        except BaseException as error:
            failed.append(error)
        ended.set()

    thread = threading.Thread(target=commits)
    thread.start()
    # The log is truncated and merged, and free pages are released, while commits continue.
    while not ended.is_set():
        store.maintain()
        store.probe()
        store._empty_log()
    thread.join()
    assert not failed
    merge(store)
    commit(store, 3_000)
    store.close()
    assert not checks


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
