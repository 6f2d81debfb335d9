"""A real file system under one store dies: shut down, made read-only, and mounted again.

These tests need root, loop devices and mkfs.ext4, and are skipped elsewhere. What they prove on a
real disk, tests/store/test_failed_reads.py and tests/gateway/test_probing.py prove everywhere.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.errors import PartitionOffline, Unknown
from onibus.directory.namespace import REOPEN_MS
from onibus.directory.probing import PROBE_MS
from onibus.operation.health import readiness
from onibus.shard.housekeeping import HOUSEKEEPING_MS
from tests.bus_helpers import KEYS, ManualClock, bodies, get, index_in, msg, pass_ms, run, send

#: The ioctl of ext4 and XFS that ends a file system as a dead disk does: nothing more is written.
SHUTDOWN, WITHOUT_LOG = 0x8004587D, struct.pack("I", 2)


def call(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Disk:
    """A file system in a file, mounted in a directory."""

    def __init__(self, directory: Path) -> None:
        self.path, self._image = directory / "disk", directory / "image"
        self.path.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(64 << 20)
        call("mkfs.ext4", "-q", "-F", self._image)
        self.mount()

    def mount(self) -> None:
        call("mount", "-o", "loop", self._image, self.path)

    def unmount(self) -> None:
        call("umount", self.path)

    def shut_down(self) -> None:
        """Let every read and write of it fail."""
        root = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(root, SHUTDOWN, WITHOUT_LOG)
        finally:
            os.close(root)

    def make_read_only(self) -> None:
        """Let every write of it fail, as ext4 does after an error."""
        call("mount", "-o", "remount,abort", self.path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4, to mount a file system of its own")
    try:
        made = Disk(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error.stderr.decode().strip()}")
    yield made
    subprocess.run(["umount", "-l", made.path], check=False, capture_output=True)


async def rest(bus: Bus, clock: ManualClock) -> None:
    """Let housekeeping move the logs, as it does a few seconds after the last commit."""
    for _ in range(4):
        await pass_ms(bus, clock, HOUSEKEEPING_MS)
        while any(store.threads.housekeeping for store in bus.broker.stores.values()):
            await asyncio.sleep(0.001)


@pytest.mark.promise("B8", "P10")
@pytest.mark.parametrize("found_by", ["send", "receive", "probe"])
@pytest.mark.parametrize("quiet", [True, False], ids=["log moved", "log in use"])
@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "dead"])
@run
async def test_a_store_whose_disk_died_is_limited_until_the_disk_is_back(
    disk: Disk, tmp_path: Path, found_by: str, quiet: bool, read_only: bool
) -> None:
    clock = ManualClock()
    places = {"one": tmp_path / "one", "two": disk.path}
    async with Bus.open(tmp_path / "bus", clock=clock, stores=places, reserve_bytes=0) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        key = KEYS[index_in(bus, "q", "two")]
        await send(bus, "q", "kept", partition_key=key)
        if quiet:
            await rest(bus, clock)
        disk.make_read_only() if read_only else disk.shut_down()
        if found_by == "send":
            with pytest.raises((Unknown, PartitionOffline)):
                await bus.send("q", msg("lost", partition_key=key))
        elif found_by == "receive":
            # A lock needs no answer from the disk, and is committed soon after.
            with pytest.raises((Unknown, PartitionOffline)):
                await get(bus, "q", delete=True)
        await pass_ms(bus, clock, PROBE_MS)
        assert bus.queue("q").availability == "limited"
        assert not readiness(bus).ready
        with pytest.raises(PartitionOffline):
            await bus.change_queue("q", max_delivery_count=5)
        for _ in range(3):
            await pass_ms(bus, clock, REOPEN_MS)
            assert bus.queue("q").availability == "limited", "it cannot be opened"
        disk.unmount()
        for _ in range(2):
            await pass_ms(bus, clock, REOPEN_MS)
            assert bus.queue("q").availability == "limited", "nothing is made in its place"
        assert list(disk.path.iterdir()) == []
        disk.mount()
        await pass_ms(bus, clock, REOPEN_MS)
        assert bus.queue("q").availability == "available"
        assert readiness(bus).ready
        await bus.change_queue("q", max_delivery_count=5)
        await send(bus, "q", "after", partition_key=key)
        assert bodies(await get(bus, "q")) == ["kept", "after"]
