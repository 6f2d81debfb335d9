"""Backups made while clients work: nothing acknowledged is missing, nothing is there twice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from onibus import Bus, Message
from onibus.core.errors import Damaged, InvalidArgument, LockLost, OnibusError
from onibus.core.invariants import violations
from onibus.server.backup import MANIFEST, backup, read_manifest, verify
from onibus.server.data_directory import paths_of
from onibus.server.restore import restore
from onibus.store import connection, sqlite
from onibus.store.cut import Cut, StoreCut
from tests.bus_helpers import (
    PATIENCE_S,
    get,
    get_one,
    msg,
    peek_everything,
    run,
    send,
    settle,
    until,
)
from tests.source_tree import ROOT

STORES = ("one", "two", "three")
#: Messages of a batch, each with a key of its own: it is a work over several stores.
BATCH = 6


class Clients:
    """Clients that go on until they are stopped, and what they were told."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._stopped = False
        self._next = 0
        self.sent: set[str] = set()
        self.completing: set[str] = set()
        self.completed: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for name in ("wide", "out"):
            await self._bus.create_queue(name, enable_partitioning=True)
        await self._bus.create_queue("in", enable_partitioning=True, forward_to="out")
        await self._bus.create_queue("work")
        clients = [self._batches, self._forwarded, self._plain, self._worker]
        self._tasks = [asyncio.create_task(client()) for client in clients * 2]

    async def progress(self) -> None:
        """Wait until more than two further batches are sent, and one more message is completed."""
        sent, completed = len(self.sent), len(self.completed)
        while len(self.sent) <= sent + 2 * BATCH or len(self.completed) <= completed:
            await asyncio.sleep(0.01)

    def batches(self) -> int:
        """Return how many batches the bus has accepted."""
        return sum(body.startswith("batch") for body in list(self.sent)) // BATCH

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    def _name(self, kind: str) -> str:
        self._next += 1
        return f"{kind}-{self._next}"

    async def _batches(self) -> None:
        while not self._stopped:
            name = self._name("batch")
            bodies = [f"{name}/{n}" for n in range(BATCH)]
            batch = [Message(body=body.encode(), partition_key=body) for body in bodies]
            await self._bus.send_batch("wide", batch)
            self.sent.update(bodies)

    async def _forwarded(self) -> None:
        while not self._stopped:
            body = self._name("forwarded")
            await self._bus.send("in", msg(body, partition_key=body))
            self.sent.add(body)

    async def _plain(self) -> None:
        while not self._stopped:
            body = self._name("plain")
            await self._bus.send("work", msg(body))
            self.sent.add(body)

    async def _worker(self) -> None:
        receiver = self._bus.receiver("work")
        while not self._stopped:
            for held in await receiver.receive(5, wait_ms=20):
                body = held.body.decode()
                self.completing.add(body)
                await receiver.complete(held)
                self.completed.add(body)


def wrongs(found: Counter[str], sent: set[str], clients: Clients, done: set[str]) -> list[str]:
    """Return what a restored bus should not show.

    `sent` and `done` is what clients had been told before the backup began.
    """
    wrong = [f"{body} is there {count} times" for body, count in found.items() if count > 1]
    wrong += [f"{body} is lost" for body in sent - set(found) - clients.completing]
    wrong += [f"{body} was completed and is back" for body in done & set(found)]
    batches = Counter(body.split("/")[0] for body in found if body.startswith("batch"))
    wrong += [f"{name} has {count}" for name, count in batches.items() if count != BATCH]
    return wrong


async def restored(source: Path, directory: Path) -> Counter[str]:
    """Restore a backup, open it, let it come to rest, and return the messages that are there."""
    restore(source, directory)
    async with Bus.open(directory, stores=STORES) as bus:
        await until(lambda: not bus.queue("in").active_count and bus.broker.idle())
        assert bus.alarms == []
        for partition in bus.broker.partitions.values():
            assert violations(partition.online()) == []
        names = ("wide", "in", "out", "work")
        return Counter(m.body.decode() for name in names for m in peek_everything(bus, name))


def from_here(bus: Bus, directory: Path, target: Path) -> None:
    backup(bus, target)


def from_elsewhere(bus: Bus, directory: Path, target: Path) -> None:
    program = "import sys; from onibus.server.backup import backup; backup(*sys.argv[1:])"
    command = [sys.executable, "-c", program, str(directory), str(target)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=PATIENCE_S)


async def under_load(
    tmp_path: Path, make: Callable[[Bus, Path, Path], None], times: int
) -> list[str]:
    """Make backups while clients work; return what is wrong with what they restore to."""
    told: list[tuple[set[str], set[str]]] = []
    async with Bus.open(tmp_path / "data", stores=STORES) as bus:
        clients = Clients(bus)
        await clients.start()
        for at in range(times):
            await clients.progress()
            told.append((set(clients.sent), set(clients.completed)))
            await asyncio.to_thread(make, bus, tmp_path / "data", tmp_path / f"backup-{at}")
        await clients.stop()
        assert bus.alarms == []
    wrong = []
    for at, (sent, done) in enumerate(told):
        found = await restored(tmp_path / f"backup-{at}", tmp_path / f"restored-{at}")
        wrong += wrongs(found, sent, clients, done)
    return wrong


@pytest.mark.parametrize("make", [from_here, from_elsewhere])
def test_a_backup_under_load_loses_nothing_and_repeats_nothing(
    tmp_path: Path, make: Callable[[Bus, Path, Path], None]
) -> None:
    @run
    async def test() -> None:
        assert await under_load(tmp_path, make, times=3) == []

    test()


def test_copying_one_store_after_the_other_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[Clients] = []
    start = Clients.start

    async def noted(self: Clients) -> None:
        running.append(self)
        await start(self)

    def one_by_one(self: Cut, paths: Mapping[str, str]) -> None:
        for name, path in paths.items():
            store = StoreCut(name, path)
            self._ending.callback(store.close)
            store.begin()
            self.stores.append(store)
            # Two batches are under way; the third begins after this store was cut.
            enough = running[-1].batches() + 3
            while running[-1].batches() < enough:
                time.sleep(0.001)

    @run
    async def test() -> None:
        try:
            wrong = await under_load(tmp_path, from_here, times=3)
        except (OnibusError, AssertionError) as error:
            wrong = [str(error)]
        assert wrong

    monkeypatch.setattr(Clients, "start", noted)
    monkeypatch.setattr(Cut, "_take", one_by_one)
    test()


@run
async def test_large_blocks_come_along_though_they_go_meanwhile(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "backup"
    async with Bus.open(data) as bus:
        await bus.create_queue("q")
        large = [Message(body=bytes([n]) * 100_000) for n in range(20)]
        await bus.send_batch("q", large)
        assert any((data / "main.sqlite.blocks").iterdir())
        begun, gone = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def progress(store: str, done: int, total: int) -> None:
            if store == "namespace":
                # The cut is made; nothing of the other store has been copied.
                loop.call_soon_threadsafe(begun.set)
                assert gone.wait(PATIENCE_S)

        copying = asyncio.create_task(
            asyncio.to_thread(lambda: backup(bus, target, progress=progress))
        )
        await begun.wait()
        await get(bus, "q", delete=True)
        assert not any((data / "main.sqlite.blocks").iterdir())
        gone.set()
        made = await copying
        assert [one.block_files > 0 for one in made.stores] == [False, True]
        assert not list(data.glob("*.cut-*"))
    restore(target, tmp_path / "new")
    async with Bus.open(tmp_path / "new") as bus:
        there = [m.body for m in await get(bus, "q", delete=True)]
        assert there == [m.body for m in large]


@run
async def test_commits_do_not_wait_for_a_long_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A commit that waits for a lock waits longer than the test.
    for module in (connection, sqlite):
        monkeypatch.setattr(module, "BUSY_MS", 3_600_000)
    async with Bus.open(tmp_path / "data") as bus:
        await bus.create_queue("q")
        await send(bus, "q", "before")
        store = bus.broker.stores["main"]
        with Cut(paths_of(bus)):
            await send(bus, "q", "after")
            # The second time it finds that nobody has committed, and wants the log to itself.
            for _ in range(2):
                while store.threads.housekeeping:
                    await asyncio.sleep(0.01)
                assert store.loop is not None
                bus.broker.houses["main"].begin(store.loop)
            await asyncio.sleep(0.1)
            await send(bus, "q", "meanwhile")
        assert bus.alarms == []


@run
async def test_a_restored_bus_is_another_one(tmp_path: Path) -> None:
    data, target, new = tmp_path / "data", tmp_path / "backup", tmp_path / "new"
    async with Bus.open(data) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "a", "b")
        held = await get_one(bus, "q")
        await settle(bus)
        await asyncio.to_thread(backup, bus, target)
    async with Bus.open(data) as bus:
        later = await get_one(bus, "q")
    restore(target, new)
    async with Bus.open(new) as bus:
        again = await get_one(bus, "q")
        assert again.body == later.body
        # What the other bus gave out after the cut holds nothing here, though all numbers agree.
        with pytest.raises(LockLost):
            await bus.receiver("q").complete(later)
        await bus.receiver("q").complete([again, held])
    # A store of one in the place of the other's is noticed.
    os.replace(data / "main.sqlite", new / "main.sqlite")
    os.remove(new / "main.sqlite.witness")
    with pytest.raises(Damaged, match="are not its own"):
        async with Bus.open(new):
            pass


@run
async def test_stores_on_several_disks_come_home_and_go_out_again(tmp_path: Path) -> None:
    places = {"one": tmp_path / "disk1", "two": tmp_path / "disk2"}
    async with Bus.open(tmp_path / "data", stores=places) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        await send(bus, "q", *"abcdef")
    with pytest.raises(InvalidArgument, match=r"one\.sqlite not found"):
        backup(tmp_path / "data", tmp_path / "b1")
    backup(tmp_path / "data", tmp_path / "b2", places=places)
    with pytest.raises(InvalidArgument, match="no message store"):
        restore(tmp_path / "b2", tmp_path / "new", places={"three": tmp_path / "x"})
    homes = {"one": tmp_path / "other1", "two": tmp_path / "other2"}
    restore(tmp_path / "b2", tmp_path / "new", places=homes)
    async with Bus.open(tmp_path / "new", stores=homes) as bus:
        assert len(peek_everything(bus, "q")) == 6


@run
async def test_what_is_no_whole_backup_is_not_restored(tmp_path: Path) -> None:
    data, target, new = tmp_path / "data", tmp_path / "backup", tmp_path / "new"
    async with Bus.open(data) as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [Message(body=b"x" * 100_000) for _ in range(10)])
    backup(data, target)
    assert (target.stat().st_mode & 0o777, (target / "main.sqlite").stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )
    assert verify(target).bytes == read_manifest(target).bytes > 1_000_000
    (block,) = (target / "main.sqlite.blocks").iterdir()
    for path in (target / "main.sqlite", target / "namespace.sqlite", block):
        content = path.read_bytes()
        path.write_bytes(content[:5_000] + bytes([content[5_000] ^ 1]) + content[5_001:])
        with pytest.raises(Damaged):
            restore(target, new)
        path.write_bytes(content)
    kept = block.rename(tmp_path / "kept")
    with pytest.raises(Damaged, match="missing"):
        restore(target, new)
    kept.rename(block)
    (target / MANIFEST).rename(tmp_path / MANIFEST)
    with pytest.raises(InvalidArgument, match="not a complete one"):
        restore(target, new)
    (tmp_path / MANIFEST).rename(target / MANIFEST)
    assert not new.exists() or not any(new.iterdir())
    restore(target, new)
    with pytest.raises(InvalidArgument, match="not empty"):
        restore(target, new)
    with pytest.raises(InvalidArgument, match="not empty"):
        backup(new, target)
    async with Bus.open(new) as bus:
        assert len(await get(bus, "q")) == 10


@run
async def test_what_has_no_files_cannot_be_copied(tmp_path: Path) -> None:
    async with Bus.ephemeral() as bus:
        with pytest.raises(InvalidArgument, match="ephemeral"):
            backup(bus, tmp_path / "b")
    with pytest.raises(InvalidArgument, match="not a data directory"):
        backup(tmp_path, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@run
async def test_stores_may_be_restored_inside_the_data_directory(tmp_path: Path) -> None:
    async with Bus.open(tmp_path / "data", stores=STORES) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        backup(bus, tmp_path / "copy")
    for attempt in range(8):
        # Other names each time: in which order directories are made must not matter.
        back = tmp_path / f"back{attempt}"
        places = {name: back / name for name in STORES}
        restore(tmp_path / "copy", back, places=places)
        async with Bus.open(back, stores=places) as bus:
            assert bus.queues() == ["q"]


@run
async def test_a_refused_restore_leaves_no_directories(tmp_path: Path) -> None:
    async with Bus.open(tmp_path / "data", stores=STORES) as bus:
        backup(bus, tmp_path / "copy")
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled" / "something").touch()
    with pytest.raises(InvalidArgument, match="choose an empty directory"):
        restore(tmp_path / "copy", tmp_path / "back", places={"two": tmp_path / "filled"})
    assert not (tmp_path / "back").exists()
