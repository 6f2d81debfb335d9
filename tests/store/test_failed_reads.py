"""Reads that the disk fails: the store is not damaged by them, and works when the disk does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from onibus.core.errors import Damaged, StoreFailed
from onibus.core.records import BLOCKS
from onibus.store.block_files import FILE_BYTES_MIN
from onibus.store.conformance import batch, block
from onibus.store.connection import translate
from onibus.store.sqlite import SqliteStore
from tests.failing_reads import failing_reads

BLOCK = b"x" * 30_000


def filled(path: Path, *, quiet: bool) -> SqliteStore:
    """Return a store with rows, whose log was moved into its file or was not."""
    store = SqliteStore(path, "one")
    for number in range(5):
        store.commit(batch((BLOCKS, block(number, BLOCK))))
    if quiet:
        store.maintain()
        store.maintain()
    return store


Ask = Callable[[SqliteStore], object]
ASKS: dict[str, Ask] = {
    "commit": lambda store: store.commit(batch((BLOCKS, block(9, BLOCK)))),
    "read": lambda store: store.read(BLOCKS, (1,)),
    "scan": lambda store: list(store.scan(BLOCKS)),
    "maintain": lambda store: store.maintain(),
}


@pytest.mark.promise("B8", "P10")
@pytest.mark.parametrize(
    ("ask", "quiet"),
    # Otherwise SQLite has the pages that it needs, or asks the disk only to write.
    [("commit", True), ("read", True), ("scan", True), ("read", False), ("maintain", False)],
)
def test_a_failed_read_is_not_damage(tmp_path: Path, ask: str, quiet: bool) -> None:
    store = filled(tmp_path / "store", quiet=quiet)
    with failing_reads(tmp_path):
        with pytest.raises(StoreFailed):
            ASKS[ask](store)
        store.close()
        with pytest.raises(StoreFailed):
            SqliteStore(tmp_path / "store", "one")
    again = SqliteStore(tmp_path / "store", "one", known=True)
    assert [row[0] for row in again.scan(BLOCKS)] == [0, 1, 2, 3, 4]
    again.close()


@pytest.mark.parametrize("ask", ["commit", "read"])
def test_a_page_that_reads_well_the_second_time_is_not_damage(tmp_path: Path, ask: str) -> None:
    store = filled(tmp_path / "store", quiet=True)
    with (
        failing_reads(tmp_path, flips=1),
        pytest.raises(StoreFailed, match="another connection reads"),
    ):
        ASKS[ask](store)
    store.close()


@pytest.mark.parametrize("ask", ["commit", "read"])
def test_a_page_that_fails_its_checksum_twice_is_damage(tmp_path: Path, ask: str) -> None:
    store = filled(tmp_path / "store", quiet=True)
    with failing_reads(tmp_path, flips=1_000), pytest.raises(Damaged):
        ASKS[ask](store)
    store.close()


@pytest.mark.promise("P10")
@pytest.mark.parametrize("gone", ["all", "blocks", "file"])
def test_a_missing_block_file_is_damage_only_where_the_others_are(
    tmp_path: Path, gone: str
) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    store = SqliteStore(home / "store", "one")
    store.commit(batch((BLOCKS, block(1, b"x" * FILE_BYTES_MIN))))
    files = {"all": home, "blocks": home / "store.blocks", "file": home / "store.blocks" / "1"}
    files[gone].rename(away)
    if gone == "file":
        # The disk has what belongs there, but for this file: a message is lost.
        assert store.read(BLOCKS, (1,)) != block(1, b"x" * FILE_BYTES_MIN)
    else:
        with pytest.raises(StoreFailed):
            store.read(BLOCKS, (1,))
    away.rename(files[gone])
    store.close()
    again = SqliteStore(home / "store", "one", known=True)
    assert again.read(BLOCKS, (1,)) == block(1, b"x" * FILE_BYTES_MIN)
    again.close()


def test_the_log_is_read_once_more_before_a_store_is_called_damaged(tmp_path: Path) -> None:
    """The file layer does not tell of errors in the log, so it is read without SQLite."""
    store = filled(tmp_path / "store", quiet=False)
    error = apsw.CorruptError("database disk image is malformed")
    assert isinstance(translate(error, "reading", store._reader), Damaged)
    log = tmp_path / "store-wal"
    log.rename(tmp_path / "aside")
    log.mkdir()
    assert isinstance(translate(error, "reading", store._reader), StoreFailed)
    log.rmdir()
    (tmp_path / "aside").rename(log)
    store.close()
