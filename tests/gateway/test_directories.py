"""Directories: opened twice, of a newer version, damaged, with wrong stores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from onibus import Bus
from onibus.core.errors import (
    AlreadyOpen,
    Damaged,
    InvalidArgument,
    NewerFormat,
    StoreFailed,
)
from onibus.core.records import FORMAT_VERSION
from tests.bus_helpers import ManualClock, bodies, get, picture, run, send
from tests.source_tree import ROOT

OPEN = """
import asyncio, sys
from onibus import Bus, errors

async def main():
    try:
        async with Bus.open(sys.argv[1]):
            print("opened")
    except errors.OnibusError as error:
        print(error.code)

asyncio.run(main())
"""


def open_elsewhere(directory: Path) -> str:
    """Open a directory in another process; return what came of it."""
    command = [sys.executable, "-c", OPEN, str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@run
async def test_a_directory_is_opened_once_at_a_time(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x")
        before = picture(bus, "q")
        with pytest.raises(AlreadyOpen):
            await Bus.open(tmp_path, clock=clock)
        assert open_elsewhere(tmp_path) == "already-open"
        await send(bus, "q", "y")
        assert picture(bus, "q") != before
    assert open_elsewhere(tmp_path) == "opened"
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bodies(await get(bus, "q")) == ["x", "y"]


async def with_one_message(directory: Path, clock: ManualClock) -> None:
    async with Bus.open(directory, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "x")


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in directory.iterdir() if path.suffix == ".sqlite"
    }


@pytest.mark.parametrize("store", ["namespace", "main"])
@run
async def test_a_newer_format_is_refused(tmp_path: Path, clock: ManualClock, store: str) -> None:
    await with_one_message(tmp_path, clock)
    _set_format(tmp_path / f"{store}.sqlite", FORMAT_VERSION + 1)
    before = contents(tmp_path)
    with pytest.raises(NewerFormat, match=f"format {FORMAT_VERSION + 1}"):
        await Bus.open(tmp_path, clock=clock)
    assert contents(tmp_path)[f"{store}.sqlite"] == before[f"{store}.sqlite"]
    _set_format(tmp_path / f"{store}.sqlite", FORMAT_VERSION)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bodies(await get(bus, "q")) == ["x"]


def _set_format(path: Path, version: int) -> None:
    from onibus.store.connection import open_writer

    connection = open_writer(str(path), None)
    connection.execute("UPDATE meta SET value = ? WHERE name = 'format'", (version,))
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()


@pytest.mark.parametrize("damage", ["cut", "garbage", "missing"])
@run
async def test_a_damaged_store_is_noticed_and_left_alone(
    tmp_path: Path, clock: ManualClock, damage: str
) -> None:
    await with_one_message(tmp_path, clock)
    path = tmp_path / "main.sqlite"
    whole = path.read_bytes()
    if damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "garbage":
        path.write_bytes(b"\x55" * len(whole))
    else:
        path.unlink()
    before = contents(tmp_path)
    # A file that is missing may be on a disk that is not mounted: that passes.
    with pytest.raises(StoreFailed if damage == "missing" else Damaged):
        await Bus.open(tmp_path, clock=clock)
    assert contents(tmp_path) == before
    path.write_bytes(whole)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert bodies(await get(bus, "q")) == ["x"]


@pytest.mark.parametrize("stores", [(), ("namespace",), {}, ("a", "namespace")])
def test_names_of_stores(tmp_path: Path, stores: Any) -> None:
    with pytest.raises(InvalidArgument):
        Bus.open(tmp_path, stores=stores)
    assert list(tmp_path.iterdir()) == []


@run
async def test_stores_in_directories_of_their_own(tmp_path: Path, clock: ManualClock) -> None:
    places = {"one": tmp_path / "disk1", "two": tmp_path / "disk2"}
    async with Bus.open(tmp_path / "bus", clock=clock, stores=places) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await send(bus, "q", *"abcd")
    assert (tmp_path / "disk1" / "one.sqlite").exists()
    async with Bus.open(tmp_path / "bus", clock=clock, stores=places) as bus:
        assert len(await get(bus, "q")) == 4


@pytest.mark.promise("B8")
@run
async def test_the_names_of_new_directories_are_synced(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = set()
    real = os.fsync

    def fsync(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    root, store = tmp_path / "new" / "bus", tmp_path / "other" / "disk"
    async with Bus.open(root, stores={"one": store}, clock=clock):
        unsynced = [
            place
            for place in (tmp_path, root.parent, store.parent)
            if place.stat().st_ino not in synced
        ]
    assert unsynced == []
