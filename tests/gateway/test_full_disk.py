"""A disk that fills up: sends never take the reserve, and settling and deleting continue (B7).

The disk is a small file system, if the tests may mount one. Otherwise the stores see the size of a
small disk minus the bytes that they have written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus, Message
from onibus.core.errors import DiskNearlyFull
from onibus.server import backup as backups
from onibus.server.backup import backup
from onibus.store.files import free_bytes
from onibus.store.sqlite import SqliteStore
from tests.bus_helpers import SECOND, ManualClock, get, msg, pass_ms, run, send

DISK = 64 << 20
RESERVE = 12 << 20
KB = 1 << 10
STORES = ("a", "b")


class SmallDisk:
    """A directory on a disk with little room."""

    def __init__(self, path: Path, free: Callable[[str], int]) -> None:
        self.path = path
        self._free = free

    @property
    def free(self) -> int:
        return self._free(os.fspath(self.path))

    def bus(self, clock: ManualClock) -> Any:
        return Bus.open(self.path / "data", stores=STORES, clock=clock, reserve_bytes=RESERVE)


def _left(path: Path) -> int:
    files = [file for file in path.rglob("*") if file.is_file()]
    return DISK - sum(file.stat().st_blocks * 512 for file in files)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", os.fspath(path)]
    mounted = shutil.which("mount") and not subprocess.run(mount, capture_output=True).returncode
    if not mounted:
        defaults: Any = SqliteStore.__init__.__kwdefaults__
        monkeypatch.setitem(defaults, "free_bytes", lambda _: _left(path))
        monkeypatch.setattr(backups, "free_bytes", lambda _: _left(path))
    try:
        yield SmallDisk(path, free_bytes if mounted else lambda _: _left(path))
    finally:
        if mounted:
            subprocess.run(["umount", os.fspath(path)], check=True)


Send = Callable[[Bus, int], Awaitable[Any]]


async def one_by_one(bus: Bus, number: int) -> None:
    await bus.send("q", Message(body=bytes(100 * KB), message_id=str(number)))


async def many_at_once(bus: Bus, number: int) -> None:
    """Sends that are gathered while a commit is on its way, for both stores."""
    ids = [f"{number}/{at}" for at in range(20)]
    sends = [bus.send("q", Message(body=bytes(400 * KB), message_id=one)) for one in ids]
    done = await asyncio.gather(*sends, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one


async def batches(bus: Bus, number: int) -> None:
    messages = [Message(body=bytes(90 * KB), partition_key=str(number)) for _ in range(100)]
    await bus.send_batch("q", messages)


async def batches_over_stores(bus: Bus, number: int) -> None:
    messages = [Message(body=bytes(90 * KB), partition_key=str(key)) for key in range(40)]
    await bus.send_batch("q", messages)


async def columns(bus: Bus, number: int) -> None:
    await bus.send_arrow("one", pa.table({"body": pa.array([bytes(90 * KB)] * 100)}))


async def staged(bus: Bus, number: int) -> None:
    """Staged messages are written once more when they are published, and that is not refused."""
    messages = [Message(body=bytes(90 * KB), partition_key=str(key)) for key in range(40)]
    try:
        await bus.stage("q", messages, producer="p", batch=0, task=number, attempt=0)
    except DiskNearlyFull:
        attempts = [(task, 0) for task in range(number)]
        await bus.publish("q", producer="p", batch=0, attempts=attempts)
        raise


async def fanned_out(bus: Bus, number: int) -> None:
    """Each message has a byte for each subscription."""
    if not number:
        await bus.create_topic("t")
        for at in range(100):
            await bus.create_subscription("t", str(at))
    await bus.send_batch("t", [msg(f"{number}/{at}" * 20) for at in range(4_000)])


async def session_states(bus: Bus, number: int) -> None:
    session = await bus.accept_session("s", str(number))
    await session.set_state(bytes(200 * KB))
    await session.close()


WAYS = (
    one_by_one, many_at_once, batches, batches_over_stores, columns, staged, fanned_out,
    session_states,
)  # fmt: skip


async def _prepare(bus: Bus) -> None:
    await bus.create_queue("q", enable_partitioning=True, requires_duplicate_detection=True)
    await bus.create_queue("one")
    await bus.create_queue("s", requires_session=True)
    await bus.create_queue("small")
    await send(bus, "small", *map(str, range(20)))


async def _rest(bus: Bus, clock: ManualClock) -> None:
    """Let the stores keep house until their logs are moved."""
    for _ in range(5):
        await pass_ms(bus, clock, 15 * SECOND)
        while any(store.threads.housekeeping for store in bus.broker.stores.values()):
            await asyncio.sleep(0)


async def _fill(bus: Bus, disk: SmallDisk, way: Send) -> int:
    """Send until the disk has no room; return how much was free at least."""
    least = disk.free
    for number in range(2_000):
        try:
            await way(bus, number)
        except DiskNearlyFull:
            assert number > 1, "something was sent"
            return min(least, disk.free)
        least = min(least, disk.free)
    raise AssertionError("the disk never was full")


@pytest.mark.promise("B7")
@pytest.mark.parametrize("way", WAYS)
@run
async def test_sends_never_take_the_reserve(disk: SmallDisk, clock: ManualClock, way: Send) -> None:
    async with disk.bus(clock) as bus:
        await _prepare(bus)
        least = await _fill(bus, disk, way)
        await _rest(bus, clock)
        least = min(least, disk.free)
        kept = RESERVE // 2 if way is session_states else RESERVE
        assert least >= kept, f"{(kept - least) / KB:.0f} KB of the reserve were taken"
        # What the reserve is for.
        receiver = bus.receiver("small")
        for message in await get(bus, "small"):
            await receiver.complete(message)
        for name in ("q", "one", "s"):
            await bus.delete_queue(name)
        if bus.topics():
            await bus.delete_topic("t")
        await _rest(bus, clock)
        await send(bus, "small", "x" * KB)


@run
async def test_a_backup_leaves_the_reserve_and_nothing_of_itself(
    disk: SmallDisk, clock: ManualClock
) -> None:
    copy, ballast = disk.path / "copy", disk.path / "ballast"

    def fill_up(_name: str, _done: int, _total: int) -> None:
        """Something else takes the room while the backup copies."""
        ballast.write_bytes(bytes(max(0, disk.free - RESERVE)))

    async with disk.bus(clock) as bus:
        await bus.create_queue("one")
        for _ in range(28):
            await bus.send("one", Message(body=bytes(1000 * KB)))
        for progress in (None, fill_up):
            with pytest.raises(DiskNearlyFull, match="use another disk"):
                backup(bus, copy, progress=progress)
            assert not any(copy.iterdir())
            assert disk.free >= RESERVE
            # The second time it fits, until the disk fills up.
            await bus.purge("one")
            await _rest(bus, clock)
        ballast.unlink()
        assert backup(bus, copy).stores
