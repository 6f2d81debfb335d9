"""One thread commits, others read and scan, one maintains: nobody waits for or disturbs another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from onibus.core.records import BLOCKS, GONE, WriteBatch
from onibus.store.conformance import batch, block
from onibus.store.connection import PAGE_BYTES
from onibus.store.sqlite import FREE_PAGES_MAX, SqliteStore

COMMITS = 300


def test_readers_see_whole_commits_in_order(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store", "one", log_bytes_max=256 << 10)
    store.commit(batch((BLOCKS, block(0)), (GONE, (0, 0, 0, 0))))
    done = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        for number in range(1, COMMITS):
            rows = (BLOCKS, block(number, b"%d" % number * 5000)), (GONE, (0, 0, 0, number))
            store.commit(batch(*rows))

    def read() -> None:
        last = 0
        while not done.is_set():
            row = store.read(GONE, (0, 0, 0))
            highest = store.highest(BLOCKS)
            assert row is not None
            assert isinstance(row[3], int)
            assert isinstance(highest, int)
            assert last <= row[3] <= highest
            last = row[3]

    def scan() -> None:
        while not done.is_set():
            numbers = [row[0] for row in store.scan(BLOCKS, ("block",))]
            assert numbers == list(range(len(numbers)))

    def maintain() -> None:
        while not done.is_set():
            store.maintain()

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    others = [threading.Thread(target=guarded, args=(work,)) for work in (read, scan, maintain)]
    for thread in others:
        thread.start()
    guarded(write)
    done.set()
    for thread in others:
        thread.join()
    assert errors == []
    store.close()
    again = SqliteStore(tmp_path / "store", "one")
    assert [row[0] for row in again.scan(BLOCKS, ("block",))] == list(range(COMMITS))
    again.close()


def test_a_commit_waits_for_one_slice_of_maintenance(tmp_path: Path) -> None:
    """Without turns SQLite lets it poll, and slices that follow each other keep it out."""
    store = SqliteStore(tmp_path / "store", "one")
    numbers = range(1, 2 * FREE_PAGES_MAX)
    store.commit(batch(*[(BLOCKS, block(number, bytes(PAGE_BYTES))) for number in numbers]))
    gone = WriteBatch()
    for number in numbers:
        gone.delete(BLOCKS, (number,))
    store.commit(gone)
    before = store.position
    #: the position of the store when each slice began
    slices: list[int] = []
    commit = threading.Thread(target=store.commit, args=(batch((GONE, (0, 0, 0, 0))),))

    def noted(_cursor: object, statement: str, _values: object) -> bool:
        if statement.startswith("PRAGMA incremental_vacuum"):
            if not slices:
                commit.start()
                while not store._turns.next.locked():
                    time.sleep(0.001)
            slices.append(store.position)
        return True

    store._checkpointer.exec_trace = noted
    store.maintain()
    commit.join()
    assert slices[0] == before
    assert set(slices[1:]) == {before + 1}
    store.close()
