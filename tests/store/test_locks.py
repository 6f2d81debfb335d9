"""One opener per store: the lock on its database, and files that are replaced while it is open."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.errors import (
    AlreadyOpen,
    InvalidArgument,
    PartitionOffline,
    StoreFailed,
    Unknown,
)
from onibus.core.records import BLOCKS
from onibus.server.backup import backup
from onibus.server.check import check
from onibus.server.restore import restore
from onibus.store.conformance import batch, block
from onibus.store.sqlite import SqliteStore
from tests.bus_helpers import SECOND, ManualClock, bodies, get, msg, pass_ms, run, send

LARGE = b"x" * (600 << 10)

OPEN = """
import sys
from onibus.core.errors import AlreadyOpen
from onibus.store.sqlite import SqliteStore
try:
    SqliteStore(sys.argv[1], "one")
except AlreadyOpen:
    print("refused")
"""
#: Takes the lock of which SQLite makes sure that no other process has the database open.
SQLITE_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
    except OSError:
        print("refused")
"""
#: Opens a store, forks a child that outlives it, and ends.
FORK = """
import os, sys, time
from onibus.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], "one")
there, here = os.pipe()
if os.fork() == 0:
    os.write(here, b"x")
    sys.stdin.read()
    os._exit(0)
os.read(there, 1)
print("ended", flush=True)
os._exit(0)
"""


def in_another_process(program: str, path: Path) -> str:
    command = [sys.executable, "-c", program, os.fspath(path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def same_name(path: Path) -> Path:
    Path(f"{path}.lock").unlink()
    return path


def second_name(path: Path) -> Path:
    other = path.with_name("second")
    other.hardlink_to(path)
    return other


def renamed_directory(path: Path) -> Path:
    path.parent.rename(path.parent.with_name("renamed"))
    Path(path.parent.with_name("renamed"), "store.lock").unlink()
    return path.parent.with_name("renamed") / path.name


@pytest.mark.parametrize("reach", [same_name, second_name, renamed_directory])
def test_a_second_opener_is_refused_without_the_lock_file(
    path: Path, reach: Callable[[Path], Path]
) -> None:
    store = SqliteStore(path, "one")
    store.commit(batch((BLOCKS, block(1))))
    other = reach(path)
    assert in_another_process(OPEN, other) == "refused"
    with pytest.raises(AlreadyOpen):
        SqliteStore(other, "one")
    # Closing a file that SQLite has open takes SQLite's own locks on it away.
    assert in_another_process(SQLITE_LOCK, other) == "refused"
    store.commit(batch((BLOCKS, block(2))))
    store.close()
    again = SqliteStore(other, "one")
    assert [row[0] for row in again.scan(BLOCKS)] == [1, 2]
    again.close()


def test_an_older_version_is_kept_out_and_keeps_us_out(path: Path) -> None:
    """Versions up to 0.1.0 lock the file next to the database, and nothing else."""
    store = SqliteStore(path, "one")
    with open(f"{path}.lock", "r+b") as older:
        with pytest.raises(BlockingIOError):
            fcntl.flock(older, fcntl.LOCK_EX | fcntl.LOCK_NB)
        store.close()
        fcntl.flock(older, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(AlreadyOpen):
            SqliteStore(path, "one")
    SqliteStore(path, "one").close()


def test_a_forked_child_does_not_keep_the_lock(path: Path) -> None:
    command = [sys.executable, "-c", FORK, os.fspath(path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ended\n"
        process.wait()
        SqliteStore(path, "one").close()


def deleted(file: Path) -> None:
    shutil.rmtree(file) if file.is_dir() else file.unlink()


def replaced(file: Path) -> None:
    """Put a copy in the place of a file, as an editor or a restore by hand does."""
    kept = file.with_name("kept")
    file.rename(kept)
    shutil.copytree(kept, file) if kept.is_dir() else shutil.copy(kept, file)


@pytest.mark.promise("B8")
@pytest.mark.parametrize("end", ["", "-wal", "-shm", ".blocks"])
@pytest.mark.parametrize("change", [deleted, replaced])
def test_no_commit_is_acknowledged_in_files_that_lost_their_names(
    path: Path, end: str, change: Callable[[Path], None]
) -> None:
    store = SqliteStore(path, "one")
    store.commit(batch((BLOCKS, block(1, LARGE))))
    store.commit(batch((BLOCKS, block(2))))
    change(Path(f"{path}{end}"))
    with pytest.raises(StoreFailed, match=f"store{end} was {change.__name__}"):
        store.commit(batch((BLOCKS, block(3))))
    with pytest.raises(StoreFailed, match="cannot be used"):
        store.commit(batch((BLOCKS, block(4))))
    store.close()


def test_a_directory_may_be_renamed_and_commits_are_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    store = SqliteStore(home / "store", "one")
    store.commit(batch((BLOCKS, block(1))))
    home.rename(tmp_path / "elsewhere")
    store.commit(batch((BLOCKS, block(2))))
    store.close()
    again = SqliteStore(tmp_path / "elsewhere" / "store", "one")
    assert [row[0] for row in again.scan(BLOCKS)] == [1, 2]
    again.close()


@run
async def test_a_copy_of_a_directory_is_a_directory_of_its_own(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path / "data", clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    async with (
        Bus.open(tmp_path / "data", clock=clock) as bus,
        Bus.open(tmp_path / "copy", clock=clock) as other,
    ):
        await send(bus, "q", "2")
        await send(other, "q", "3")
        assert bodies(await get(bus, "q")) == ["1", "2"]
        assert bodies(await get(other, "q")) == ["1", "3"]


@run
async def test_a_restore_over_a_running_bus_is_noticed_and_not_taken_up(
    tmp_path: Path, clock: ManualClock
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with Bus.open(data, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
        backup(bus, copy)
        await bus.create_queue("later")
        shutil.rmtree(data)
        restore(copy, data)
        with pytest.raises(Unknown, match=r"was (deleted|replaced)"):
            await bus.create_queue("another")
        with pytest.raises(Unknown, match=r"was (deleted|replaced)"):
            await send(bus, "q", "lost")
        await pass_ms(bus, clock, 5 * SECOND)
        with pytest.raises(PartitionOffline):
            await bus.send("q", msg("refused"))
        assert bus.queues() == ["later", "q"], "its entities are not those of another namespace"
        assert any("are not its own" in alarm for alarm in bus.alarms)
        async with Bus.open(data, clock=clock) as restored:
            assert bodies(await get(restored, "q")) == ["1"]


@pytest.mark.promise("S3")
@run
async def test_an_older_copy_of_a_store_is_not_taken_up(tmp_path: Path, clock: ManualClock) -> None:
    data, old = tmp_path / "data", tmp_path / "old"
    async with Bus.open(data, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
        shutil.copytree(data, old)
        await send(bus, "q", "2")
        data.rename(tmp_path / "moved")
        shutil.copytree(old, data)
        await pass_ms(bus, clock, 5 * SECOND)
        for _ in range(2):
            with pytest.raises(PartitionOffline):
                await bus.send("q", msg("with a number that another message has"))
            await pass_ms(bus, clock, 5 * SECOND)
        assert any("older copy" in alarm for alarm in bus.alarms)


@run
async def test_a_database_that_is_put_back_is_opened_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
        (tmp_path / "main.sqlite").rename(tmp_path / "elsewhere")
        await pass_ms(bus, clock, 5 * SECOND)
        with pytest.raises(PartitionOffline):
            await bus.send("q", msg("2"))
        (tmp_path / "elsewhere").rename(tmp_path / "main.sqlite")
        await pass_ms(bus, clock, 5 * SECOND)
        await send(bus, "q", "3")
        assert bodies(await get(bus, "q")) == ["1", "3"]


@run
async def test_two_buses_cannot_share_a_store(tmp_path: Path, clock: ManualClock) -> None:
    places = {"a": tmp_path / "a", "b": tmp_path / "b"}
    async with Bus.open(tmp_path / "one", clock=clock, stores=places):
        (tmp_path / "b" / "b.sqlite.lock").unlink()
        mixed = {"a": tmp_path / "other", "b": tmp_path / "b"}
        with pytest.raises(AlreadyOpen, match=r"b\.sqlite"):
            await Bus.open(tmp_path / "two", clock=clock, stores=mixed)


def test_check_refuses_a_directory_in_use_without_its_lock_files(
    tmp_path: Path, clock: ManualClock
) -> None:
    @run
    async def in_use() -> None:
        async with Bus.open(tmp_path, clock=clock):
            for file in tmp_path.glob("*.lock"):
                file.unlink()
            with pytest.raises(InvalidArgument, match="is in use"):
                check(tmp_path)

    in_use()
    assert check(tmp_path).sound


@run
async def test_a_missing_witness_raises_an_alarm(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
        assert not bus.alarms
    for name in ("main", "namespace"):
        (tmp_path / f"{name}.sqlite.witness").unlink()
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert [alarm.split(":")[0] for alarm in bus.alarms] == ["store namespace", "store main"]
        assert bodies(await get(bus, "q")) == ["1"]
    backup(tmp_path, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "new")
    async with Bus.open(tmp_path / "new", clock=clock) as bus:
        assert not bus.alarms
