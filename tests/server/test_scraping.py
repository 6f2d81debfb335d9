"""Metrics of a large namespace: made in slices, once a second, while the bus works."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from onibus import Bus
from onibus.operation import collector as module
from onibus.operation import figures
from onibus.operation.collector import SLICE, Collector
from onibus.operation.traffic import Traffic
from tests.bus_helpers import run, send
from tests.server.web import ask, serving

QUEUES = 1_000


class Turns:
    """Counts the turns that others have while something is made."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *error: object) -> None:
        self._task.cancel()


async def filled(bus: Bus, queues: int) -> Collector:
    for n in range(queues):
        await bus.create_queue(f"q{n}")
    return Collector(bus, Traffic())


@run
@pytest.mark.parametrize("per_object", [False, True])
async def test_others_have_their_turn_after_every_slice(per_object: bool) -> None:
    async with Bus.ephemeral() as bus:
        collector = await filled(bus, QUEUES)
        with Turns() as turns:
            page = b"".join(await collector.page(per_object=per_object))
    # Each queue has about twenty samples, whether they become lines or are added up.
    samples = QUEUES * 20
    lines = page.count(b"\n")
    assert lines > samples if per_object else lines < 300
    assert turns.count >= (samples + (lines if per_object else 0)) / SLICE


@run
async def test_sessions_of_one_queue_are_looked_at_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLICE", 50)
    monkeypatch.setattr(figures, "SESSIONS_A_SLICE", 50)
    async with Bus.ephemeral() as bus:
        await bus.create_queue("s", requires_session=True)
        for n in range(2_000):
            await send(bus, "s", "x", session_id=str(n))
        await bus.accept_session("s", "7")
        collector = Collector(bus, Traffic())
        with Turns() as turns:
            page = b"".join(await collector.page(per_object=True)).decode()
        assert turns.count >= 2_000 / 50
    assert 'onibus_sessions_active{entity="s",partition="0"} 1\n' in page


@run
async def test_a_page_is_made_once_for_all_who_ask_and_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    gather = Collector._gather

    def counted(self: Collector, *args: Any) -> Iterator[None]:
        made.append(self)
        return gather(self, *args)

    monkeypatch.setattr(Collector, "_gather", counted)
    # Longer than this test takes, whatever the machine does.
    monkeypatch.setattr(module, "FRESH_SECONDS", 3_600.0)
    async with Bus.ephemeral() as bus, serving(bus) as server:
        await bus.create_queue("q")
        answers = await asyncio.gather(*(ask(server, "GET", "/metrics") for _ in range(5)))
        await send(bus, "q", "x")
        answers.append(await ask(server, "GET", "/metrics"))
        assert len({answer.content for answer in answers}) == 1
        assert len(made) == 1
        assert (await ask(server, "GET", "/metrics/per-object")).status_code == 200
        assert len(made) == 2
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    async with Bus.ephemeral() as bus, serving(bus) as server:
        await bus.create_queue("q")
        first = await ask(server, "GET", "/metrics")
        await send(bus, "q", "x")
        assert "onibus_messages_accepted_total 0" in first.text
        assert "onibus_messages_accepted_total 1" in (await ask(server, "GET", "/metrics")).text
        # A page that is no longer fresh takes no memory.
        collector = server.app.collector
        await asyncio.sleep(0.01)
        assert collector._pages == {}


@run
async def test_deletions_while_a_page_is_made_do_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page looks at entities, sessions and messages that it found a slice before."""
    monkeypatch.setattr(module, "SLICE", 1)
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    async with Bus.ephemeral() as bus:
        collector = Collector(bus, Traffic())
        for turn in range(30):
            await bus.create_queue("s", requires_session=True)
            await bus.create_topic("t")
            for name in ("a", "b"):
                await bus.create_subscription("t", name)
                await bus.create_reader(f"t/subscriptions/{name}", "audit", log="outcomes")
            for n in range(5):
                await send(bus, "s", "x", session_id=str(n))
                await send(bus, "t", "x")
            page = asyncio.ensure_future(collector.page(per_object=True))
            for _ in range(turn * 2):
                await asyncio.sleep(0)
            async with bus.receiver("t/subscriptions/a") as receiver:
                await receiver.complete(*await receiver.receive(5))
            await bus.purge("s")
            await bus.delete_subscription("t/subscriptions/b")
            await bus.delete_topic("t")
            await bus.delete_queue("s")
            text = b"".join(await page).decode()
            assert "onibus_entities" in text
            assert bus.broker.alarms.count == 0
        assert not any(store.failed for store in bus.broker.stores.values())
