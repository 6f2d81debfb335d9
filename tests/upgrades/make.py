"""Make a data directory and a lake of today's version, to be opened by every later one.

    python -m tests.upgrades.make tests/upgrades/0.1.0

Run it before a release that changes a format, and commit the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import shutil
import signal
import tarfile
import tempfile
import time
from pathlib import Path

from onibus import Bus
from onibus.spark.jobs.capture import capture
from onibus.spark.session import spark_session
from tests.server.processes import served
from tests.upgrades.contents import STORES, fill, listed

#: Entities, and the options of their captures.
CAPTURED: dict[str, dict[str, str]] = {
    "orders": {},
    "news": {},
    "news/subscriptions/all": {},
    "plain": {"body": "text", "table_format": "iceberg"},
    "documents": {"body": "json", "schema": "id INT, total DOUBLE"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        data, lake = Path(scratch) / "data", Path(scratch) / "lake"
        asyncio.run(_fill(data))
        _capture(data, lake)
        expected = {"made_ms": time.time_ns() // 1_000_000, "entities": asyncio.run(_listed(data))}
        _pack(folder / "data.tar.gz", data)
        _pack(folder / "lake.tar.gz", lake)
    with gzip.open(folder / "expected.json.gz", "wt") as file:
        json.dump(expected, file)


async def _fill(data: Path) -> None:
    async with Bus.open(data, stores=STORES) as bus:
        await fill(bus)


def _capture(data: Path, lake: Path) -> None:
    """Capture from a server, which is killed: its last commits are in SQLite's log only."""
    config = data.parent / "onibus.toml"
    places = "".join(f"{name} = {json.dumps(str(data))}\n" for name in STORES)
    config.write_text(f"[stores]\n{places}")
    with served("--data", data, "--config", config) as server:
        # One session for all: what the bus remembers for five minutes must be there afterwards.
        spark = spark_session()
        for entity, options in CAPTURED.items():
            source = {"connection": server.ready["development"], "entity": entity}
            capture(spark, source, str(lake), **options)  # type: ignore[arg-type]
        spark.stop()
        server.stop(signal.SIGKILL)


async def _listed(data: Path) -> dict[str, object]:
    """List what is in a copy, so that the original stays as the kill left it."""
    copy = data.parent / "copy"
    shutil.copytree(data, copy)
    async with Bus.open(copy, stores=STORES) as bus:
        return await listed(bus)


def _pack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, folder.name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
