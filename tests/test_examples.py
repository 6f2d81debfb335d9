"""The examples do what they say."""

from __future__ import annotations

import asyncio
import os
import runpy
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from onibus import Bus, Message
from onibus.core.arrow_block import SCHEMA, encode_arrow
from onibus.core.block import Block
from onibus.core.records import BLOCKS, WriteBatch
from onibus.store.sqlite import SqliteStore
from tests.server.processes import PATIENCE_S
from tests.source_tree import ROOT, imports_of

SCRIPT = ROOT / "examples/read_block.py"
MESSAGES = [
    Message(body=b"\x00\xff", message_id="first", properties={"city": "Bern", "raw": b"\x01"}),
    Message(subject="second", time_to_live_ms=60_000, enqueued_sequence_number=2**63 - 1),
    Message(body=b"third", format="amqp"),
]


def fill(directory: Path) -> Path:
    """Make a bus with some messages and close it; return its store's file."""

    async def send() -> None:
        async with Bus.open(directory) as bus:
            await bus.create_queue("orders")
            await bus.send_batch("orders", MESSAGES[:2])
            await bus.send("orders", MESSAGES[2])

    asyncio.run(send())
    return directory / "main.sqlite"


def put_in_arrow(path: Path) -> None:
    """Rewrite every block of a store in Arrow."""
    store = SqliteStore(path, "main")
    batch = WriteBatch()
    for number, payload in store.scan(BLOCKS):
        assert isinstance(payload, bytes)
        block = Block(payload)
        index = block.index
        columns = block.record_batch().select(SCHEMA.names)
        arrow = encode_arrow(
            index["ordinal"],
            index["stamp"],
            index["arrived"],
            index["expires"],
            index["session"],
            index["kind"],
            columns,
        )
        batch.put(BLOCKS, (number, arrow))
    store.commit(batch)
    store.close()


def read_store(path: Path) -> pd.DataFrame:
    read: Callable[[str], pd.DataFrame] = runpy.run_path(str(SCRIPT))["read_store"]
    return read(str(path))


def test_read_block_reads_large_blocks_too(tmp_path: Path) -> None:
    async def send() -> None:
        async with Bus.open(tmp_path) as bus:
            await bus.create_queue("orders")
            await bus.send_batch("orders", [Message(body=b"x" * 1_000)] * 1_000)

    asyncio.run(send())
    assert list(tmp_path.glob("main.sqlite.blocks/*"))
    frame = read_store(tmp_path / "main.sqlite")
    assert frame["ordinal"].tolist() == list(range(1, 1_001))
    assert set(frame["body"]) == {b"x" * 1_000}


@pytest.mark.parametrize("lives", [[None] * 100, [60_000, None] * 50], ids=["equal", "different"])
def test_read_block_reads_blocks_that_were_staged(tmp_path: Path, lives: list[int | None]) -> None:
    rows = pa.table({"body": [b"%d" % at for at in range(100)], "time_to_live_ms": lives})

    async def send() -> None:
        names: dict[str, Any] = {"producer": "job", "batch": 0}
        async with Bus.open(tmp_path) as bus:
            await bus.create_queue("orders")
            await bus.send("orders", Message(body=b"first"))
            await bus.stage_arrow("orders", rows, task=0, attempt=0, **names)
            await bus.publish("orders", attempts=[(0, 0)], **names)
            await bus.stage_arrow("orders", rows, producer="job", batch=1, task=0, attempt=0)

    asyncio.run(send())
    frame = read_store(tmp_path / "main.sqlite")
    assert frame["ordinal"].tolist() == list(range(1, 102))
    assert frame["body"].tolist() == [b"first", *(b"%d" % at for at in range(100))]


@pytest.mark.parametrize("arrow", [False, True], ids=["rows", "arrow"])
def test_read_block_shows_what_was_sent(tmp_path: Path, arrow: bool) -> None:
    path = fill(tmp_path)
    if arrow:
        put_in_arrow(path)
    frame = read_store(path)
    assert frame["ordinal"].tolist() == [1, 2, 3]
    assert frame["partition"].nunique() == 1
    assert frame["enqueued_time_ms"].is_monotonic_increasing
    for name in Message.__struct_fields__:
        assert frame[name].tolist() == [getattr(message, name) for message in MESSAGES], name


def run_script(path: Path) -> str:
    command = [sys.executable, str(SCRIPT), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_read_block_prints_the_frame(tmp_path: Path) -> None:
    printed = run_script(fill(tmp_path))
    assert all(word in printed for word in ("message_id", "first", "Bern", "b'third'", "amqp"))


def test_read_block_reads_beside_a_running_bus(tmp_path: Path) -> None:
    async def read_beside() -> str:
        async with Bus.open(tmp_path) as bus:
            await bus.create_queue("orders")
            await bus.send_batch("orders", MESSAGES)
            # In a process of its own: a second SQLite library in ours would drop the bus's locks.
            return run_script(tmp_path / "main.sqlite")

    assert "b'third'" in asyncio.run(read_beside())


def test_a_bus_opens_after_it_was_read(tmp_path: Path) -> None:
    path = fill(tmp_path)
    before = path.read_bytes()
    read_store(path)
    assert path.read_bytes() == before

    async def receive() -> list[Message]:
        async with Bus.open(tmp_path) as bus, bus.receiver("orders") as receiver:
            return [received.message for received in await receiver.receive(10)]

    assert asyncio.run(receive()) == MESSAGES


def test_a_bus_delivers_what_is_in_arrow(tmp_path: Path) -> None:
    put_in_arrow(fill(tmp_path))

    async def receive() -> list[Message]:
        async with Bus.open(tmp_path) as bus, bus.receiver("orders") as receiver:
            return [received.message for received in await receiver.receive(10)]

    assert asyncio.run(receive()) == MESSAGES


def test_read_block_notices_damage(tmp_path: Path) -> None:
    path = fill(tmp_path)
    store = sqlite3.connect(path)
    third = "block = (SELECT block FROM block_index WHERE first = 3)"
    (payload,) = store.execute(f"SELECT payload FROM blocks WHERE {third}").fetchone()
    damaged = payload.replace(b"third", b"thirb")
    store.execute(f"UPDATE blocks SET payload = ? WHERE {third}", (damaged,))
    store.commit()
    store.close()
    with pytest.raises(AssertionError, match="damaged"):
        read_store(path)


def test_read_block_does_without_onibus() -> None:
    names = {name for name, _ in imports_of("examples/read_block.py")}
    assert not [name for name in names if name.split(".")[0] == "onibus"]


def test_the_demonstration_runs_and_leaves_nothing_out(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/demonstration.py"), str(tmp_path / "bus")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE_S, env=environment
    )
    for words in (
        "dropped: duplicate of that number",
        "is completed",
        "is deferred",
        "NoSuchCustomer",
        "MaxDeliveryCountExceeded",
        "tea is ready",
        "anna: step 1, step 2",
        "After reopening",
        "was received by its sequence number",
        "sent again, is a duplicate of",
        "next message b'step 3'",
    ):
        assert words in done.stdout, words
    assert not done.stderr
