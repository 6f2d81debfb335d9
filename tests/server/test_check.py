"""The offline check finds what was planted, says nothing of what is sound, and changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from onibus import Bus, Message
from onibus.core.block import NEVER
from onibus.core.errors import InvalidArgument
from onibus.server.backup import backup
from onibus.server.check import Report, check
from onibus.server.findings import ERROR, NOTICE, WARNING
from onibus.store import witness
from onibus.store.connection import checksum_vfs
from tests.bus_helpers import DAY, get_one, run, send

STORES = ("one", "two")


@run
async def fill(directory: Path, killed: bool) -> None:
    """Make a data directory with a bit of everything; closed, or as a kill leaves it."""
    work = directory.with_name("work")
    async with Bus.open(work, stores=STORES) as bus:
        await bus.create_queue("q", enable_partitioning=True, requires_duplicate_detection=True)
        await bus.create_queue("s", requires_session=True)
        await bus.create_topic("t", retention_ms=1_000_000)
        await bus.create_subscription("t", "a")
        await bus.create_reader("q", "audit")
        for n in range(40):
            await bus.send("q", Message(body=b"x" * 500, message_id=str(n), time_to_live_ms=DAY))
        await send(bus, "s", "1", "2", session_id="one")
        await send(bus, "t", "1", "2")
        # In one store each, and large: a file each.
        await bus.send_batch("s", [Message(body=b"y" * 90_000, session_id="z")] * 10)
        held = await get_one(bus, "t/subscriptions/a")
        await bus.receiver("t/subscriptions/a").dead_letter(held)
        assert await bus.claim("q", "spark", 5) is not None
        if killed:
            shutil.copytree(work, directory)
    if not killed:
        shutil.copytree(work, directory)
    shutil.rmtree(work)


@pytest.fixture(scope="module", params=[False, True], ids=["closed", "killed"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled") / "data"
    fill(directory, request.param)
    return directory


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(filled, tmp_path / "data")


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files, but SQLite's index of its log, which is made anew when it is missing."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")
    }


def looked(data: Path) -> Report:
    before = contents(data)
    report = check(data)
    assert contents(data) == before
    return report


def errors(report: Report) -> str:
    return "\n".join(f"{one.where}: {one.what}" for one in report.findings if one.severity == ERROR)


def block_store(data: Path) -> Path:
    (blocks,) = [path for path in data.glob("*.blocks") if any(path.iterdir())]
    return blocks


def execute(path: Path, *statements: str) -> None:
    """Change a store behind its back, with the right checksums on its pages."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READWRITE, checksum_vfs())
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_sound_directory_is_found_sound(data: Path) -> None:
    report = looked(data)
    assert report.findings == []
    assert report.sound
    assert (report.stores, report.entities, report.partitions) == (3, 4, 18)
    assert report.messages == 40 + 12 + 2
    assert report.blocks > 5
    assert report.bytes > 900_000


def test_a_backup_is_found_sound(data: Path, tmp_path: Path) -> None:
    backup(data, tmp_path / "backup")
    report = looked(tmp_path / "backup")
    assert report.sound
    assert {one.severity for one in report.findings} <= {NOTICE}
    assert report.messages == 54


@run
async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    async with Bus.open(tmp_path):
        with pytest.raises(InvalidArgument, match="in use"):
            check(tmp_path)
    assert check(tmp_path).sound
    with pytest.raises(InvalidArgument, match="not a data directory"):
        check(tmp_path / "nowhere")


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def flip_in_a_page(data: Path) -> None:
    path = data / "one.sqlite"
    # The main file of a store that was killed may be all log: let it be moved in.
    execute(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    flip(path, path.stat().st_size - 4_000)


def flip_in_a_block_file(data: Path) -> None:
    flip(next(block_store(data).iterdir()), 100_000)


def remove_a_block_file(data: Path) -> None:
    next(block_store(data).iterdir()).unlink()


def remove_a_store(data: Path) -> None:
    for path in data.glob("two.sqlite*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut_the_end_off(data: Path) -> None:
    path = data / "one.sqlite"
    execute(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    testimony = witness.read(f"{path}.witness")
    assert testimony is not None
    writer = witness.Witness(f"{path}.witness", testimony.store)
    writer.write(testimony.position, path.stat().st_size)
    writer.close()
    os.truncate(path, path.stat().st_size - 8192)


def lose_commits(data: Path) -> None:
    testimony = witness.read(str(data / "one.sqlite.witness"))
    assert testimony is not None
    writer = witness.Witness(str(data / "one.sqlite.witness"), testimony.store)
    writer.write(testimony.position + 3, testimony.length)
    writer.close()


def garble_the_witness(data: Path) -> None:
    (data / "one.sqlite.witness").write_bytes(b"garbled" * 1000)


def unknown_format(data: Path) -> None:
    execute(data / "one.sqlite", "UPDATE meta SET value = 0 WHERE name = 'format'")


def another_store(data: Path) -> None:
    execute(data / "one.sqlite", "UPDATE meta SET value = randomblob(16) WHERE name = 'identity'")
    (data / "one.sqlite.witness").unlink()


def a_wrong_row(data: Path) -> None:
    path = data / "two.sqlite"
    wrong = "CAST(substr(payload, 1, length(payload) - 3) || x'010203' AS BLOB)"
    changed = f"UPDATE blocks SET payload = {wrong}"
    small = "SELECT max(block) FROM blocks WHERE typeof(payload) = 'blob'"
    execute(path, f"{changed} WHERE block = ({small})")


def a_missing_block(data: Path) -> None:
    execute(data / "two.sqlite", "DELETE FROM blocks WHERE block = (SELECT max(block) FROM blocks)")


def a_wrong_index(data: Path) -> None:
    for name in STORES:
        execute(data / f"{name}.sqlite", "UPDATE block_index SET rows = rows + 1, last = last + 1")


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (flip_in_a_page, "one: "),
        (flip_in_a_block_file, "does not match its checksum"),
        (remove_a_block_file, "its file is missing"),
        (remove_a_store, "is missing"),
        (cut_the_end_off, "is truncated"),
        (lose_commits, "the last 3 commits are lost"),
        (garble_the_witness, "witness of the store is damaged"),
        (unknown_format, "unknown format 0"),
        (another_store, "not the store that the namespace records"),
        (a_wrong_row, "does not match its checksum"),
        (a_missing_block, "is missing"),
        (a_wrong_index, "rows, not"),
    ],
)
def test_damage_is_found(data: Path, plant: Callable[[Path], None], words: str) -> None:
    plant(data)
    report = looked(data)
    assert not report.sound
    assert words in errors(report)
    assert all(one.advice for one in report.findings if one.severity == ERROR)


def test_what_cannot_be_true_of_a_partition_is_found(data: Path) -> None:
    # Nobody would look at these blocks when their messages expire.
    for name in STORES:
        execute(data / f"{name}.sqlite", f"UPDATE block_index SET expires = {NEVER}")
    report = looked(data)
    assert not report.sound
    assert all(one.where.startswith("partition ") for one in report.findings)
    assert all(one.what.startswith("10: ") for one in report.findings)


def test_a_missing_witness_is_told(data: Path) -> None:
    (data / "one.sqlite.witness").unlink()
    report = looked(data)
    assert report.sound
    assert [(one.severity, one.where) for one in report.findings] == [(WARNING, "one")]


def test_one_broken_store_does_not_hide_the_others(data: Path) -> None:
    remove_a_store(data)
    report = looked(data)
    assert {one.where for one in report.findings} == {"two"}
    assert report.partitions == 18
    assert 0 < report.messages < 54


def test_a_namespace_that_cannot_be_read_is_told(data: Path) -> None:
    execute(data / "namespace.sqlite", "PRAGMA wal_checkpoint(TRUNCATE)")
    flip(data / "namespace.sqlite", 3_000)
    report = looked(data)
    assert not report.sound
    assert "namespace" in errors(report)


def test_files_that_do_not_belong_are_told(data: Path) -> None:
    (data / "notes.txt").write_text("mine")
    (data / "old.sqlite").write_bytes(b"")
    (data / "one.sqlite.cut-1-2").mkdir()
    (block_store(data) / "999999").write_bytes(b"left by a crash")
    report = looked(data)
    assert report.sound
    found = {(one.severity, Path(one.where).name): one.what for one in report.findings}
    assert (NOTICE, "notes.txt") in found
    assert (WARNING, "old.sqlite") in found
    assert "interrupted" in found[NOTICE, "one.sqlite.cut-1-2"]
    assert any("left over from a crash" in what for what in found.values())
