"""What a SQLite store does with its files: who may open them, what it refuses, what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from onibus.core.errors import AlreadyOpen, Damaged, NewerFormat, StoreFailed
from onibus.core.records import BLOCKS, FORMAT_VERSION, META, WriteBatch
from onibus.store import witness
from onibus.store.conformance import batch, block
from onibus.store.connection import BUSY_MS, checksum_vfs, require_sqlite
from onibus.store.sqlite import SqliteStore
from onibus.testing.disk import SimulatedDisk

HOLD_OPEN = """
import sys
import time
from onibus.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], "one")
print("open", flush=True)
sys.stdin.read()
"""


def alter(path: Path, statement: str) -> None:
    """Change a store behind its back, as another version would."""
    connection = apsw.Connection(os.fspath(path), vfs=checksum_vfs())
    connection.execute(statement)
    connection.close()


def test_second_opening_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store", "one")
    with pytest.raises(AlreadyOpen):
        SqliteStore(tmp_path / "store", "one")
    store.commit(batch((BLOCKS, block(1))))
    store.close()
    SqliteStore(tmp_path / "store", "one").close()


def test_other_process_is_refused_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-c", HOLD_OPEN, os.fspath(path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(AlreadyOpen):
            SqliteStore(path, "one")
        other.kill()
        other.wait()
    SqliteStore(path, "one").close()


def test_failed_opening_lets_go_of_everything(tmp_path: Path) -> None:
    path = tmp_path / "store"
    SqliteStore(path, "one").close()
    for _ in range(2):
        with pytest.raises(StoreFailed, match="holds store 'one', not 'two'"):
            SqliteStore(path, "two")
    SqliteStore(path, "one").close()


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="No such file"):
        SqliteStore(tmp_path / "nowhere" / "store", "one")


def test_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    SqliteStore(path, "one").close()
    alter(path, f"UPDATE meta SET value = {FORMAT_VERSION + 1} WHERE name = 'format'")
    before = path.read_bytes()
    with pytest.raises(NewerFormat, match=f"format {FORMAT_VERSION + 1}"):
        SqliteStore(path, "one")
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", ["3.51.2", "3.40.1", "3.7.0"])
def test_sqlite_that_loses_commits_is_refused(version: str) -> None:
    with pytest.raises(StoreFailed, match=version):
        require_sqlite(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.54.1", "4.0.0"])
def test_sqlite_without_the_fault_is_taken(version: str) -> None:
    require_sqlite(version)


def test_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for content in (b"not a database at all " * 1000, b"short"):
        path.write_bytes(content)
        with pytest.raises(Damaged):
            SqliteStore(path, "one")
        assert path.read_bytes() == content


def test_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    alter(path, "CREATE TABLE theirs (value)")
    before = path.read_bytes()
    with pytest.raises(Damaged):
        SqliteStore(path, "one")
    assert path.read_bytes() == before


def test_clean_close_leaves_one_file_with_everything(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store", "one")
    store.commit(batch((BLOCKS, block(1, b"x" * 50_000))))
    identity = store.identity
    store.close()
    assert {file.name for file in tmp_path.iterdir()} == {"store", "store.lock", "store.witness"}
    again = SqliteStore(tmp_path / "store", "one")
    assert again.identity == identity
    assert again.read(META, ("position",)) == ("position", 1)
    again.close()


def test_close_does_not_wait_for_a_scan_nobody_finished(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store", "one")
    store.commit(batch((BLOCKS, block(1)), (BLOCKS, block(2))))
    rows = store.scan(BLOCKS)
    assert next(rows) == block(1)
    store.commit(batch((BLOCKS, block(3))))
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < BUSY_MS / 1_000
    again = SqliteStore(tmp_path / "store", "one")
    assert [row[0] for row in again.scan(BLOCKS)] == [1, 2, 3]
    assert list(rows) == [block(2)]
    again.close()


def test_maintain_moves_a_log_that_has_grown(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store", "one", log_bytes_max=1 << 20)
    main, log = tmp_path / "store", tmp_path / "store-wal"
    for number in range(100):
        store.commit(batch((BLOCKS, block(number, b"x" * 50_000))))
        store.maintain()
    assert main.stat().st_size > 3 << 20
    assert log.stat().st_size < 2 << 20
    assert store.size() == main.stat().st_size + log.stat().st_size
    store.close()


def test_free_space_is_asked_of_the_store_s_directory(tmp_path: Path) -> None:
    asked: list[str] = []

    def free_bytes(directory: str) -> int:
        asked.append(directory)
        return 4711

    store = SqliteStore(tmp_path / "store", "one", free_bytes=free_bytes)
    assert store.free() == 4711
    assert asked == [os.fspath(tmp_path)]
    store.close()
    real = SqliteStore(tmp_path / "store", "one")
    assert real.free() > 0
    real.close()


def test_scan_without_payload_does_not_read_payloads() -> None:
    disk = SimulatedDisk(seed=0)
    store = SqliteStore("store", "one", vfs=disk.name)
    written = WriteBatch()
    for number in range(100):
        written.put(BLOCKS, block(number, b"x" * 100_000))
    store.commit(written)
    store.close()
    store = SqliteStore("store", "one", vfs=disk.name)
    before = disk.calls["read"]
    assert len(list(store.scan(BLOCKS, ("block",)))) == 100
    assert store.highest(BLOCKS) == 99
    assert disk.calls["read"] - before < 150, "each payload has 13 pages of its own"
    store.close()


def test_store_behind_its_witness_is_not_served(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path, "one")
    store.commit(batch((BLOCKS, block(1))))
    identity = store.identity
    store.close()
    seen = witness.read(f"{path}.witness")
    assert seen == witness.Testimony(identity, 1, path.stat().st_size)
    ahead = witness.Witness(f"{path}.witness", identity)
    ahead.write(2, 0)
    ahead.close()
    before = path.read_bytes()
    with pytest.raises(Damaged, match="ends at commit 1 and was at 2"):
        SqliteStore(path, "one")
    assert path.read_bytes() == before
    (tmp_path / "store.witness").unlink()
    SqliteStore(path, "one").close()


def test_witness_of_another_store_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    SqliteStore(path, "one").close()
    path.unlink()
    SqliteStore(tmp_path / "other", "one").close()
    (tmp_path / "other").rename(path)
    with pytest.raises(Damaged, match="not the store in its witness"):
        SqliteStore(path, "one")


def test_a_power_cut_that_garbles_one_slot_leaves_a_witness(tmp_path: Path) -> None:
    path, file = tmp_path / "store", tmp_path / "store.witness"
    store = SqliteStore(path, "one")
    store.commit(batch((BLOCKS, block(1))))
    store.close()
    good, identity = file.read_bytes(), store.identity
    for at, position in ((0, 1), (witness.SECOND, 0)):
        for bit in range(witness.SLOT_BYTES * 8):
            flipped = bytearray(good)
            flipped[at + bit // 8] ^= 1 << bit % 8
            file.write_bytes(flipped)
            testimony = witness.read(os.fspath(file))
            assert testimony is not None
            assert (testimony.store, testimony.position) == (identity, position)
            assert not testimony.whole
    # It is opened, and says that a loss may be unnoticed; the witness is then whole again.
    for notice in ("partly damaged", ""):
        store = SqliteStore(path, "one")
        assert notice in store.notice
        assert bool(store.notice) == bool(notice)
        store.close()


@pytest.mark.parametrize("length", [0, 10, 44, 4096 + 20])
def test_a_witness_that_cannot_be_read_is_damage(tmp_path: Path, length: int) -> None:
    """No power cut leaves such a witness. It was treated as none."""
    path, file = tmp_path / "store", tmp_path / "store.witness"
    store = SqliteStore(path, "one")
    store.commit(batch((BLOCKS, block(1))))
    store.close()
    file.write_bytes((b"garbled" * 1000)[:length])
    before = path.read_bytes()
    with pytest.raises(Damaged, match="remove that file to continue"):
        SqliteStore(path, "one")
    assert path.read_bytes() == before
    file.unlink()
    again = SqliteStore(path, "one")
    assert "witness was missing" in again.notice
    again.close()
    again = SqliteStore(path, "one")
    assert again.notice == ""
    again.close()


def test_a_witness_of_version_0_1_0_is_read(tmp_path: Path) -> None:
    path, file = tmp_path / "store", tmp_path / "store.witness"
    store = SqliteStore(path, "one")
    store.close()
    file.write_bytes(file.read_bytes()[: witness.SLOT_BYTES])
    again = SqliteStore(path, "one")
    assert again.notice == ""
    again.close()
    assert file.stat().st_size == witness.SECOND + witness.SLOT_BYTES


@pytest.mark.parametrize("version", [0, -1])
def test_a_format_that_no_version_wrote_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "store"
    SqliteStore(path, "one").close()
    alter(path, f"UPDATE meta SET value = {version} WHERE name = 'format'")
    before = path.read_bytes()
    with pytest.raises(Damaged, match=f"the unknown format {version}"):
        SqliteStore(path, "one")
    assert path.read_bytes() == before
