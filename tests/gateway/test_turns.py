"""Large fan-outs take turns: others are served in between, and nothing else changes (B3, P13)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus, FalseFilter, Rule
from onibus.core.arrow_block import messages_of
from onibus.core.errors import EntityNotFound, InvalidOperation
from onibus.core.lifecycle import State
from onibus.core.message import Message, encode_properties
from onibus.core.path import bulk, expire, fan_out
from onibus.core.path.fan_out import SHARE_STEPS
from onibus.core.path.plan import Plan
from onibus.directory import turns
from onibus.gateway import sending
from onibus.shard.replies import OfClient, Reply
from tests.bus_helpers import Disks, ManualClock, keys_of, msg, run, send, settle
from tests.gateway.topic_helpers import dead, sound, sql, there, topic_with

STEPS = 200


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make slices small; return the steps that each of them took."""
    for module in (turns, sending):
        monkeypatch.setattr(module, "SLICE_STEPS", STEPS)
    monkeypatch.setattr(fan_out, "BIT_STEPS", 20)
    monkeypatch.setattr(fan_out, "SHARE_STEPS", 5)
    taken: list[int] = []
    original: Any = Plan.run

    def counted(self: Plan, steps: int) -> int:
        left: int = original(self, steps)
        taken.append(steps - left)
        return left

    monkeypatch.setattr(Plan, "run", counted)
    return taken


class Held:
    """Slices of turns that are done when a test says so."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.slices: deque[Any] = deque()
        bus.broker.turns.soon = self.slices.append

    async def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin something that has to wait."""
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        assert self.slices, "it is computed already"
        assert not task.done()
        return task

    def do(self, count: int | None = None) -> None:
        """Do that number of slices, or all."""
        while self.slices and count != 0:
            self.slices.popleft()()
            count = None if count is None else count - 1


@pytest.mark.promise("B3", "S2")
@run
async def test_others_are_served_while_a_fan_out_is_computed(
    clock: ManualClock, slices: list[int]
) -> None:
    bus = await Disks().bus(clock)
    names = await topic_with(bus, *(f"s{at}" for at in range(20)))
    await bus.create_queue("other")
    held = Held(bus)
    batch = await held.begin(bus.send_batch("t", [msg(str(at)) for at in range(100)]))
    for text in "xyz":
        held.do(3)
        await send(bus, "other", text)
        assert not batch.done()
    held.do()
    assert [sent.sequence_number for sent in await batch] == list(range(1, 101))
    assert there(bus, names[0]) == [str(at) for at in range(100)] == there(bus, names[19])
    assert len(slices) > 10
    sound(bus)
    await bus.close()


@pytest.mark.promise("B3")
@run
async def test_no_slice_has_more_work_than_it_may(clock: ManualClock, slices: list[int]) -> None:
    bus = await Disks().bus(clock)
    await bus.create_topic("t")
    like = " OR ".join(f"p{at} LIKE '%a_b%'" for at in range(3))
    for at in range(5):
        rules = [sql(f"r{number}", like, "SET x = 1") for number in range(4)]
        await bus.create_subscription("t", f"s{at}", rules=rules)
    properties = {f"p{at}": "a" * 30 for at in range(3)}
    await bus.send_batch("t", [msg(properties=properties) for _ in range(20)])
    # No rule here reads a stamp, so all of them run ahead.
    assert len(slices) > 20
    # What cannot be cut: one rule on one message, or the share of one subscription.
    assert max(slices) <= STEPS + 150 + 20 * (1 + len(properties))
    await bus.close()


@pytest.mark.promise("P4", "S2", "B5")
@run
async def test_nothing_overtakes_a_fan_out_that_is_computed(clock: ManualClock) -> None:
    bus = await Disks().bus(clock)
    names = await topic_with(bus, *(f"s{at}" for at in range(10)))
    await bus.create_queue("q")
    held = Held(bus)
    first = await held.begin(bus.send_batch("t", [msg(f"a{at}") for at in range(30)]))
    second = await held.begin(bus.send("t", msg("b")))
    transaction = bus.transaction()
    await transaction.send("t", msg("c"))
    await transaction.send("q", msg("d"))
    third = await held.begin(transaction.commit())
    fourth = await held.begin(bus.send("t", msg("e")))
    fifth = await held.begin(bus.send("q", msg("f")))
    held.do()
    await asyncio.gather(first, second, third, fourth, fifth)
    assert there(bus, names[3]) == [*(f"a{at}" for at in range(30)), "b", "c", "e"]
    assert there(bus, "q") == ["d", "f"], "a transaction keeps its place in all its entities"
    sound(bus)
    await bus.close()


@pytest.mark.promise("B3", "P11")
@pytest.mark.parametrize("count", [0, 1, 3])
@run
async def test_rules_count_as_they_are_when_the_batch_is_stored(
    clock: ManualClock, count: int
) -> None:
    bus = await Disks().bus(clock)
    kept, opened, shut, gone, stamped = await topic_with(
        bus, "kept", "opened", "shut", "gone", "stamped"
    )
    for at in range(40):
        await bus.create_subscription("t", f"more{at}")
    await bus.change_rule(opened, Rule("$Default", FalseFilter()))
    await bus.change_rule(stamped, sql("$Default", "sys.SequenceNumber % 2 = 0"))
    held = Held(bus)
    messages = [msg(str(at), properties={"n": at}) for at in range(30)]
    batch = await held.begin(bus.send_batch("t", messages))
    # Some subscriptions have their share already, some have not.
    held.do(count)
    await bus.change_rule(opened, sql("$Default", "n >= 20", "SET mark = 'new'"))
    await bus.change_rule(shut, sql("$Default", "10 / n > 100"))
    await bus.change_subscription(shut, dead_letter_on_filter_error=True)
    await bus.delete_subscription(gone)
    late = await bus.create_subscription("t", "late")
    assert held.slices, "the batch came first"
    held.do()
    await batch
    everything = [str(at) for at in range(30)]
    assert there(bus, kept) == everything == there(bus, late)
    assert there(bus, opened) == everything[20:]
    assert {one.properties["mark"] for one in bus.peek(opened)} == {"new"}
    assert (there(bus, shut), dead(bus, shut)) == ([], [("0", "FilterEvaluationException")])
    assert there(bus, stamped) == everything[1::2]
    sound(bus)
    await bus.close()


@pytest.mark.promise("D10", "D6", "S5")
@run
async def test_duplicates_and_times_are_decided_as_ever(clock: ManualClock) -> None:
    bus = await Disks().bus(clock)
    names = await topic_with(
        bus, *(f"s{at}" for at in range(10)), requires_duplicate_detection=True
    )
    await bus.send("t", msg("before", message_id="m3"))
    messages = [msg(str(at), message_id=f"m{at % 20}") for at in range(25)]
    messages[7].scheduled_enqueue_time_ms = clock.wall() + 60_000
    sent = await bus.send_batch("t", messages)
    assert sent[3].duplicate_of == 1
    assert [one.duplicate_of for one in sent[20:]] == [sent[at].sequence_number for at in range(5)]
    expected = ["before", *(str(at) for at in range(20) if at not in (3, 7))]
    assert there(bus, names[0]) == expected == there(bus, names[9])
    assert bus.topic("t").scheduled_count == 1
    sound(bus)
    await bus.close()


@pytest.mark.promise("P13", "B3")
@pytest.mark.parametrize("stores", [("main",), ("one", "two")])
@run
async def test_a_batch_over_partitions_stays_whole(
    clock: ManualClock, slices: list[int], stores: tuple[str, ...]
) -> None:
    bus = await Disks().bus(clock, *stores)
    names = await topic_with(bus, *(f"s{at}" for at in range(10)), enable_partitioning=True)
    keys = [key for index in range(4) for key in keys_of(index)]
    messages = [msg(f"{key} {at}", partition_key=key) for at in range(10) for key in keys]
    held = Held(bus)
    batch = await held.begin(bus.send_batch("t", messages))
    later = await held.begin(bus.send("t", msg("later", partition_key=keys[0])))
    held.do()
    await asyncio.gather(batch, later)
    found = there(bus, names[5])
    assert sorted(found) == sorted([*(one.body.decode() for one in messages), "later"])
    own = [text for text in found if text.startswith(f"{keys[0]} ") or text == "later"]
    if len(stores) == 1:
        # Over several stores the batch is decided only when all of them have staged it.
        assert own == [*(f"{keys[0]} {at}" for at in range(10)), "later"]
    assert len(slices) > 5
    sound(bus)
    await bus.close()


@pytest.mark.promise("B3")
@run
async def test_a_topic_that_is_deleted_and_a_bus_that_is_closed_meanwhile(
    clock: ManualClock,
) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    await topic_with(bus, *(f"s{at}" for at in range(10)))
    (name,) = await topic_with(bus, "one", topic="u")
    held = Held(bus)
    batch = await held.begin(bus.send_batch("t", [msg(str(at)) for at in range(30)]))
    behind = await held.begin(bus.send("t", msg("behind")))
    await bus.delete_topic("t")
    held.do()
    for one in (batch, behind):
        with pytest.raises(EntityNotFound):
            await one
    bus.broker.turns.soon = bus.broker.call_soon
    batch = asyncio.create_task(bus.send_batch("u", [msg(str(at)) for at in range(300)]))
    await asyncio.sleep(0)
    assert bus.broker.turns.waiting == 1
    await bus.close()
    assert len(await batch) == 300, "what was begun is finished"
    bus = await disks.bus(clock)
    assert len(there(bus, name)) == 300
    await bus.close()


@pytest.mark.promise("B5")
@run
async def test_a_turn_that_two_lanes_come_to_at_once_is_taken_once(clock: ManualClock) -> None:
    bus = await Disks().bus(clock)
    for topic in "tu":
        await topic_with(bus, *(f"s{at}" for at in range(10)), topic=topic)
    held = Held(bus)
    before = [await held.begin(bus.send_batch(topic, [msg("a")] * 30)) for topic in "tu"]
    transaction = bus.transaction()
    for topic in "tu":
        await transaction.send_batch(topic, [msg("b")] * 30)
    committed = await held.begin(transaction.commit())
    held.do()
    await asyncio.gather(*before, committed)
    for topic in "tu":
        assert there(bus, f"{topic}/subscriptions/s0") == ["a"] * 30 + ["b"] * 30
    assert bus.broker.turns.waiting == 0
    await bus.close()


@pytest.mark.promise("S6", "B3")
@run
async def test_fewer_messages_come_due_in_a_slice_the_more_rules_they_meet(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await Disks().bus(clock)
    names = await topic_with(bus, *(f"s{at}" for at in range(5)))
    # The topic itself has a share, too.
    monkeypatch.setattr(expire, "DUE_STEPS", 6 * SHARE_STEPS + 20)
    for at in range(10):
        await bus.schedule("t", msg(str(at)), clock.wall() + 1_000)
    clock.advance(2_000)
    partition = bus.broker.find("t").partitions[0]
    left = []
    while count := partition.online().subscription.counts[State.SCHEDULED]:
        left.append(count)
        bus.broker.advance(partition, bus.broker.clock.now())
    assert left == [10, 6, 2], "each of them takes five steps"
    await settle(bus)
    assert there(bus, names[0]) == [str(at) for at in range(10)]
    await bus.close()


@pytest.mark.promise("B3", "D10")
@pytest.mark.parametrize("count", [20, 100])
@run
async def test_rows_in_columns_are_planned_too(
    clock: ManualClock, slices: list[int], count: int
) -> None:
    bus = await Disks().bus(clock)
    names = await topic_with(bus, *(f"s{at}" for at in range(20)))
    due = clock.wall() + 60_000
    rows = pa.table(
        {
            "body": [str(at).encode() for at in range(count)],
            "scheduled_enqueue_time_ms": [due if at == 3 else None for at in range(count)],
        }
    )
    sent = await bus.send_arrow("t", rows)
    await send(bus, "t", "after")
    assert sent.sequence_number.to_pylist() == list(range(1, count + 1))
    assert len(slices) > 2
    expected = [*(str(at) for at in range(count) if at != 3), "after"]
    assert there(bus, names[0]) == expected == there(bus, names[19])
    assert bus.topic("t").scheduled_count == 1
    sound(bus)
    await bus.close()


@pytest.mark.promise("B3")
@run
async def test_a_send_whose_client_left_is_computed_no_further(
    clock: ManualClock, slices: list[int]
) -> None:
    bus = await Disks().bus(clock)
    names = await topic_with(bus, *(f"s{at}" for at in range(10)))
    held = Held(bus)
    left = False

    def send_to(reply: Reply, messages: list[Message]) -> None:
        sending.send(bus.broker, "t", messages, OfClient(reply, lambda: left))

    table = pa.table({"body": [b"columns"] * 300})
    admission = await bus.admit_arrow("t", table)
    gone = [
        await held.begin(bus.ask(lambda reply: send_to(reply, [msg("rows")] * 300))),
        await held.begin(bus.ask(lambda reply: admission.send(OfClient(reply, lambda: left)))),
    ]
    cancelled = await held.begin(bus.send_batch("t", [msg("cancelled")] * 300))
    behind = await held.begin(bus.send("t", msg("behind")))

    held.do(2)
    computed = len(slices)
    left = True
    cancelled.cancel()
    await asyncio.wait([cancelled])
    held.do()
    await behind
    assert len(slices) == computed, "a slice was computed for a client that has left"
    for one in gone:
        with pytest.raises(InvalidOperation):
            await one
    assert [there(bus, name) for name in names] == [["behind"]] * 10
    assert bus.broker.turns.waiting == 0
    sound(bus)
    await bus.close()


@pytest.mark.promise("B3")
@run
async def test_large_properties_in_columns_are_read_in_slices(
    clock: ManualClock, slices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BYTES_READ", 400)
    sizes: list[int] = []
    original: Any = messages_of

    def counted(rows: pa.RecordBatch) -> Any:
        sizes.append(len(rows))
        return original(rows)

    properties = [encode_properties({f"p{at}": row for at in range(30)}) for row in range(12)]
    assert 200 > len(properties[0]) > 100
    bus = await Disks().bus(clock)
    (name,) = await topic_with(bus, "one")
    table = pa.table({"body": [b"x"] * 12, "properties": properties})
    admission = await bus.admit_arrow("t", table)
    monkeypatch.setattr(bulk, "messages_of", counted)
    await bus.ask(admission.send)
    # Two or three rows at a time, several slices, and once only.
    assert sum(sizes) == 12
    assert max(sizes) <= 3
    assert len(slices) > 2
    assert [one.properties["p29"] for one in bus.peek(name)] == list(range(12))
    sound(bus)
    await bus.close()
