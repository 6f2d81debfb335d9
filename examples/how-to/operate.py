"""Back up, restore, check and diagnose a data directory: python examples/how-to/operate.py"""

import asyncio
import tempfile
from pathlib import Path

from onibus import Bus, Message
from onibus.server.backup import backup
from onibus.server.check import check
from onibus.server.doctor import BAD, doctor
from onibus.server.restore import restore


async def back_up(data: Path, copy: Path) -> None:
    """Back up two stores while the bus runs."""
    async with Bus.open(data, stores=["one", "two"]) as bus:
        await bus.create_queue("orders", enable_partitioning=True)
        await bus.send("orders", Message(body=b"order 1"))
        made = await asyncio.to_thread(backup, str(data), str(copy))
        print(made.bytes, "bytes; commits waited", made.held_ms, "ms")
        await bus.send("orders", Message(body=b"order 2"))


async def restore_backup(copy: Path, restored: Path) -> None:
    """Restore the backup: it has the first order only."""
    restore(str(copy), str(restored))
    async with Bus.open(restored, stores=["one", "two"]) as bus:
        assert bus.queue("orders").active_count == 1


def check_directory(restored: Path) -> None:
    """Verify every page, block and row of a data directory."""
    report = check(str(restored))
    assert report.sound, report.findings
    print(report.messages, "messages in", report.partitions, "partitions")


def diagnose(restored: Path) -> None:
    """Check this machine and the data directory."""
    for one in doctor(str(restored), ports=[0]):
        print(f"{one.state:8} {one.name}: {one.found}  {one.advice}")
        assert one.state != BAD


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        data, copy, restored = (Path(directory, name) for name in ("data", "copy", "restored"))
        await back_up(data, copy)
        await restore_backup(copy, restored)
        check_directory(restored)
        diagnose(restored)


if __name__ == "__main__":
    asyncio.run(main())
