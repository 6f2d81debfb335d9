"""Rules run in slices for messages that the broker forwards, resubmits, replays or publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from onibus import Bus, Filter
from onibus.core.errors import InvalidArgument, MessageNotFound
from onibus.core.limits import NUMBERS_MAX
from onibus.core.path import fan_out
from onibus.core.path.plan import Plan
from onibus.directory import turns
from onibus.gateway import sending
from tests.bus_helpers import (
    HOUR,
    Disks,
    ManualClock,
    crash,
    get,
    msg,
    numbers,
    peek_everything,
    pull,
    reopen_store,
    run,
    send,
    settle,
    until,
)
from tests.gateway.staging_helpers import publish, stage
from tests.gateway.topic_helpers import dead, sound, sql, there

STEPS = 200
TEXT = {"p": "a" * 150}


class Slices:
    """Slices of rules that run when a test says so; between two of them others are served."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        #: the steps that each of them took
        self.steps: list[int] = []

    def hold(self, bus: Bus) -> None:
        bus.broker.turns.soon = self.waiting.append

    def do(self) -> None:
        """Do all slices that wait."""
        while self.waiting:
            self.waiting.pop(0)()

    async def begun(self) -> None:
        """Wait until rules wait for their next slice."""
        await until(lambda: self.waiting)

    async def serve_others(self, bus: Bus, work: Coroutine[Any, Any, Any]) -> Any:
        """Do all slices, with a send of another client after each."""
        task = asyncio.ensure_future(work)
        await self.begun()
        count = 0
        while not task.done():
            if self.waiting:
                assert not task.done()
                self.waiting.pop(0)()
                await send(bus, "other", str(count))
                count += 1
            await asyncio.sleep(0)
        assert count > 5, "others were served too rarely"
        return await task


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> Slices:
    """Make slices small, and count their steps."""
    for module in (turns, sending):
        monkeypatch.setattr(module, "SLICE_STEPS", STEPS)
    monkeypatch.setattr(fan_out, "BIT_STEPS", 20)
    monkeypatch.setattr(fan_out, "SHARE_STEPS", 5)
    found = Slices()
    original: Any = Plan.run

    def counted(self: Plan, steps: int) -> int:
        left: int = original(self, steps)
        found.steps.append(steps - left)
        return left

    monkeypatch.setattr(Plan, "run", counted)
    # No rule may run outside of a plan: the clients would wait for it.
    monkeypatch.setattr(fan_out.FanOut, "_share", _unplanned)
    return found


def _unplanned(self: Any, subscription: Any) -> None:
    raise AssertionError("rules ran in one piece")


async def costly_topic(bus: Bus, **settings: Any) -> list[str]:
    """Make a topic whose rules take many slices for one message."""
    await bus.create_queue("other")
    await bus.create_topic("t", **settings)
    rules = [sql(f"r{at}", "p LIKE '%a_b%'") for at in range(3)] + [sql("last", "p LIKE 'a%'")]
    return [await bus.create_subscription("t", f"s{at}", rules=rules) for at in range(5)]


async def emptied(bus: Bus, name: str) -> None:
    await until(lambda: not bus.queue(name).active_count)


@pytest.mark.promise("B6", "B3")
@run
async def test_forwarding_lets_others_be_served(clock: ManualClock, slices: Slices) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        names = await costly_topic(bus)
        await bus.create_queue("q", forward_to="t")
        slices.hold(bus)
        await send(bus, "q", "1", "2", "3", properties=TEXT)
        await slices.serve_others(bus, emptied(bus, "q"))
        # Those of another store are seen when its commit is durable.
        await settle(bus)
        assert [there(bus, name) for name in names] == [["1", "2", "3"]] * 5
        assert max(slices.steps) < 2 * STEPS
        sound(bus)


@pytest.mark.promise("B6")
@pytest.mark.parametrize("change", ["purge", "target", "rules", "store", "source"])
@run
async def test_changes_while_rules_run_for_a_forward(
    clock: ManualClock, slices: Slices, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        names = await costly_topic(bus)
        await bus.create_queue("q", forward_to="t")
        await bus.create_queue("elsewhere")
        slices.hold(bus)
        await send(bus, "q", "1", "2", properties=TEXT)
        await slices.begun()
        expected = [["1", "2"]] * 5
        monkeypatch.undo()
        slices.hold(bus)
        if change == "purge":
            assert await bus.purge("q", Filter(body_contains=b"1")) == 1
            expected = [["2"]] * 5
        elif change == "target":
            await bus.change_queue("q", forward_to="elsewhere")
            expected = [[]] * 5
        elif change == "rules":
            await bus.change_rule(names[0], sql("r0", "p = 'b'"))
        elif change == "store":
            pull(bus, bus.broker.find("q").stores[0])
            clock.advance(2_000)
        else:
            await bus.delete_queue("q")
            expected = [[]] * 5

        def done() -> bool:
            bus.broker.tick()
            slices.do()
            online = all(store.online for store in bus.broker.stores.values())
            return online and [there(bus, name) for name in names] == expected

        await until(done)
        await settle(bus)
        if change == "target":
            assert there(bus, "elsewhere") == ["1", "2"]
        assert [there(bus, name) for name in names] == expected
        sound(bus)


@pytest.mark.promise("X6")
@pytest.mark.parametrize("way", ["numbers", "filter"])
@run
async def test_resubmission_lets_others_be_served(
    clock: ManualClock, slices: Slices, way: str
) -> None:
    async with Disks().bus(clock) as bus:
        # An id that is recorded is replaced before the rules run.
        names = await costly_topic(bus, requires_duplicate_detection=True)
        await bus.create_queue("q")
        for at in range(3):
            await send(bus, "q", str(at), properties=TEXT, message_id=f"m{at}")
        await kill_all(bus)
        how: Any = {"where": Filter()} if way == "filter" else {"numbers": [1, 2, 3]}
        slices.hold(bus)
        again = await slices.serve_others(bus, bus.resubmit("q", to="t", **how))
        assert again.moved == {1: 1, 2: 2, 3: 3}
        assert [there(bus, name) for name in names] == [["0", "1", "2"]] * 5
        assert dead(bus, "q") == []
        sound(bus)


@pytest.mark.promise("X6")
@run
async def test_an_id_that_is_recorded_is_replaced_before_rules_run(
    clock: ManualClock, slices: Slices
) -> None:
    async with Disks().bus(clock) as bus:
        names = await costly_topic(bus, requires_duplicate_detection=True)
        await bus.create_queue("q")
        slices.hold(bus)
        await slices.serve_others(bus, send(bus, "t", "0", properties=TEXT, message_id="m"))
        await send(bus, "q", "1", properties=TEXT, message_id="m")
        await kill_all(bus)
        await slices.serve_others(bus, bus.resubmit("q", [1], to="t"))
        assert [one.message_id for one in peek_everything(bus, names[0])] == [
            "m",
            "m/resubmitted/1",
        ]
        sound(bus)


@pytest.mark.promise("X6")
@run
async def test_a_dead_letter_that_is_settled_while_rules_run(
    clock: ManualClock, slices: Slices
) -> None:
    async with Disks().bus(clock) as bus:
        names = await costly_topic(bus)
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", properties=TEXT)
        await kill_all(bus)
        slices.hold(bus)
        task = asyncio.create_task(bus.resubmit("q", [1, 2], to="t"))
        await slices.begun()
        (first, _) = await get(bus, "q", dead_letters=True)
        await bus.receiver("q", dead_letters=True).complete(first)
        slices.do()
        with pytest.raises(MessageNotFound):
            await task
        assert [there(bus, name) for name in names] == [[]] * 5
        sound(bus)


@pytest.mark.promise("X7")
@run
async def test_replay_lets_others_be_served(clock: ManualClock, slices: Slices) -> None:
    async with Disks().bus(clock) as bus:
        names = await costly_topic(bus)
        await bus.create_queue("q", retention_ms=HOUR)
        await send(bus, "q", "1", "2", "3", properties=TEXT)
        slices.hold(bus)
        assert await slices.serve_others(bus, bus.replay("q", 0, 1, to="t")) == 3
        assert [there(bus, name) for name in names] == [["1", "2", "3"]] * 5
        sound(bus)


@pytest.mark.promise("R6")
@run
async def test_publishing_lets_others_be_served_and_keeps_its_order(
    clock: ManualClock, slices: Slices
) -> None:
    async with Disks().bus(clock) as bus:
        names = await costly_topic(bus)
        texts = [str(at) for at in range(40)]
        await stage(bus, 0, *texts, queue="t")
        await stage(bus, 1, "last", queue="t")
        slices.hold(bus)
        done = await slices.serve_others(bus, publish(bus, (0, 0), (1, 0), queue="t"))
        assert done == (41, 0, False)
        assert [there(bus, name) for name in names] == [[]] * 5, "no message has p"
        sound(bus)


@pytest.mark.promise("R6", "P8")
@run
async def test_a_part_that_waits_for_its_turn_survives_a_crash_and_a_lost_store(
    clock: ManualClock, slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = Disks()
    bus = await disks.bus(clock, "a", "b")
    names = await costly_topic(bus)
    messages = [msg(str(at), properties=TEXT) for at in range(3)]
    for batch in (0, 1):
        given: Any = {"producer": "spark", "batch": batch, "task": 0, "attempt": 0}
        await bus.stage("t", messages, **given)
        slices.hold(bus)
        task = asyncio.create_task(publish(bus, (0, 0), batch=batch, queue="t"))
        await slices.begun()
        if batch == 0:
            store = bus.broker.find("t").stores[0]
            pull(bus, store)
            await reopen_store(bus, store)

            def published() -> bool:
                slices.do()
                return there(bus, names[0]) == ["0", "1", "2"]

            await until(published)
        else:
            crash(bus)
        task.cancel()
    monkeypatch.undo()
    bus = await disks.bus(clock, "a", "b")
    # The bus publishes a decided batch before it serves clients.
    assert [there(bus, name) for name in names] == [["0", "1", "2"] * 2] * 5
    sound(bus)
    await bus.close()


@pytest.mark.promise("X6")
@run
async def test_numbers_of_one_resubmission_are_limited(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q")
        with pytest.raises(InvalidArgument, match=f"1 to {NUMBERS_MAX}"):
            await bus.resubmit("q", list(range(1, NUMBERS_MAX + 2)))


async def kill_all(bus: Bus) -> None:
    """Dead-letter all messages of the queue."""
    for message in await get(bus, "q"):
        await bus.receiver("q").dead_letter(message)
    assert numbers(peek_everything(bus, "q")) == []
