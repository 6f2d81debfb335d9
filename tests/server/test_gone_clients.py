"""Clients that disconnect while the fan-out of their batch is computed: nothing more is done."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus
from onibus.api.wire import ARROW
from onibus.core.path.admit import admit as admit_one
from onibus.directory import turns
from onibus.gateway import sending
from onibus.shard.replies import is_unwanted
from tests.bus_helpers import run
from tests.server.http_helpers import serving


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; fail after a long time."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def as_json(size: int) -> tuple[str, bytes]:
    messages = [{"body": "x" * size}] * 3
    return "application/json", json.dumps({"messages": messages}).encode()


def as_arrow() -> tuple[str, bytes]:
    table = pa.table({"body": [b"x"] * 3})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return ARROW, bytes(sink.getvalue())


@pytest.mark.promise("B3")
@pytest.mark.parametrize("request_", [as_json(1), as_json(150_000), as_arrow()])
@run
async def test_a_batch_of_a_client_that_left_is_dropped(
    request_: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (turns, sending):
        monkeypatch.setattr(module, "SLICE_STEPS", 1)
    kind, body = request_
    bus = await Bus.ephemeral()
    await bus.create_topic("t")
    await bus.create_subscription("t", "s")
    slices: deque[Any] = deque()
    bus.broker.turns.soon = slices.append
    async with serving(bus=bus) as client:
        raw = await client.raw()
        head = f"POST /v1/entities/t/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
        await raw.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        topic = bus.broker.find("t")
        await until(lambda: topic.lane)
        assert topic.lane is not None
        reply = topic.lane[0].reply
        assert not is_unwanted(reply)
        raw.writer.transport.abort()
        try:
            await until(lambda: is_unwanted(reply))
        finally:
            # The server stops only when all turns are taken.
            bus.broker.turns.soon = bus.broker.call_soon
            while slices:
                slices.popleft()()
        await until(lambda: not bus.broker.turns.waiting)
        await client.send("t", "after")
        assert [one.body for one in bus.peek("t/subscriptions/s")] == [b"after"]


@pytest.mark.promise("X12")
@run
async def test_a_large_batch_is_admitted_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: set[threading.Thread] = set()
    original: Any = admit_one

    def admit(*given: Any) -> Any:
        threads.add(threading.current_thread())
        return original(*given)

    monkeypatch.setattr(sending, "admit", admit)
    bus = await Bus.ephemeral()
    await bus.create_queue("q")
    async with serving(bus=bus) as client:
        properties = {f"p{at}": at for at in range(10_000)}
        messages = [{"body": "x", "properties": properties}] * 4
        sent = await client.on("q", "batch", messages=messages)
        assert sent["accepted"] == 4
        assert threads
        assert threading.current_thread() not in threads
        assert bus.queue("q").active_count == 4
