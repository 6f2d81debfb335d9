"""Topics over restarts and crashes (B8), deletion and compaction: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from onibus import Bus, Filter, Rule, Sent
from onibus.core.errors import EntityExists, EntityNotFound, LockLost, OnibusError
from onibus.core.records import ATTEMPTS, BLOCK_INDEX, BLOCKS, GONE, HOLDS, MARKS, SESSIONS
from onibus.shard import tidying
from onibus.store.memory import MemoryStore
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    Disks,
    ManualClock,
    bodies,
    crash,
    get,
    get_one,
    msg,
    numbers,
    partition_at,
    pass_ms,
    run,
    send,
    settle,
)
from tests.gateway.topic_helpers import (
    dead,
    reopen,
    reopen_after_crash,
    sound,
    sql,
    there,
    topic_with,
    whole_picture,
)


async def busy_topic(bus: Bus, clock: ManualClock) -> tuple[str, ...]:
    """Make a topic with messages in every state, in subscriptions of several kinds."""
    await bus.create_topic("t", requires_duplicate_detection=True)
    plain = await bus.create_subscription("t", "plain", lock_duration_ms=5 * MINUTE)
    odd = await bus.create_subscription(
        "t", "odd", rules=[sql("odd", "n % 2 = 1", "SET x = n"), sql("z", "10 / n > 1")]
    )
    ordered = await bus.create_subscription("t", "ordered", requires_session=True)
    brief = await bus.create_subscription("t", "brief", default_time_to_live_ms=HOUR)
    for n in range(12):
        wanted = "s" if n % 3 else None
        await bus.send("t", msg(str(n), message_id=str(n), session_id=wanted, properties={"n": n}))
    await bus.schedule("t", msg("later", message_id="later"), clock.wall() + HOUR)
    receiver = bus.receiver(plain)
    one, two, three, four, _ = await receiver.receive(5)
    await receiver.complete(one)
    await receiver.defer(two)
    await receiver.dead_letter(three, reason="r", description="d", properties={"p": 1})
    await receiver.abandon(four, delay_ms=MINUTE)
    session = await bus.accept_session(ordered, "s", owner="me")
    (first,) = await session.receive(1)
    await session.complete(first)
    await session.set_state(b"state")
    await session.close()
    await get(bus, brief, 2, delete=True)
    return plain, odd, ordered, brief


@pytest.mark.promise("B8", "B3")
@pytest.mark.parametrize("restart", [reopen, reopen_after_crash])
def test_everything_is_there_after_a_restart(
    restart: Callable[[Bus, Disks, ManualClock], Awaitable[Bus]], clock: ManualClock
) -> None:
    @run
    async def test() -> None:
        disks = Disks()
        bus = await disks.bus(clock)
        plain, odd, ordered, brief = await busy_topic(bus, clock)
        for _ in range(2):
            bus = await restart(bus, disks, clock)
        (three,) = bus.peek(plain, where=Filter(message_id="3"))
        again = await bus.send("t", msg("x", message_id="3"))
        assert again.duplicate_of == three.sequence_number
        assert dead(bus, odd) == [("0", "FilterEvaluationException")]
        async with await bus.accept_session(ordered, "s") as session:
            assert await session.get_state() == b"state"
            assert bodies(await session.receive(99)) == ["2", "4", "5", "7", "8", "10", "11"]
        await pass_ms(bus, clock, HOUR)
        assert there(bus, brief) == ["later"]
        assert bodies(await get(bus, plain))[-1] == "later"
        issued = max(numbers(bus.peek(plain)))
        assert numbers_of(await send(bus, "t", "next", message_id="next")) == [issued + 1]
        bus = await restart(bus, disks, clock)
        await bus.close()

    test()


@pytest.mark.promise("B8")
@run
async def test_a_clean_stop_keeps_the_locks_of_each_subscription(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    a, b = await topic_with(bus, "a", "b")
    await send(bus, "t", "1", "2")
    held_a, held_b = await get_one(bus, a), await get_one(bus, b)
    bus = await reopen(bus, disks, clock)
    with pytest.raises(LockLost):
        await bus.receiver(b).complete(held_a)
    await bus.receiver(a).complete(held_a)
    await bus.receiver(b).abandon(held_b)
    assert (there(bus, a), there(bus, b)) == (["2"], ["1", "2"])
    bus = await reopen(bus, disks, clock)
    await bus.close()


@pytest.mark.promise("B3")
@run
async def test_a_deleted_subscription_frees_what_nobody_else_wants(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    await bus.create_topic("t")
    everything = await bus.create_subscription("t", "everything")
    some = await bus.create_subscription("t", "some", rules=[sql("r", "n < 5")])
    for start in range(0, 50, 5):
        batch = [msg("x" * 2_000, properties={"n": n}) for n in range(start, start + 5)]
        await bus.send_batch("t", batch)
    held = await get(bus, everything, 3)
    await bus.receiver(everything).defer(held[0])
    await bus.receiver(everything).dead_letter(held[1])
    before = bus.topic("t").size_bytes
    assert before > 100_000
    await bus.delete_subscription(everything)
    with pytest.raises(EntityNotFound):
        await get(bus, everything)
    with pytest.raises(EntityNotFound):
        await bus.receiver(everything).complete(held[2])
    sound(bus)
    assert 10_000 < bus.topic("t").size_bytes < 12_000
    bus = await reopen(bus, disks, clock)
    assert bus.subscription(some).active_count == 5
    again = await bus.create_subscription("t", "everything")
    assert there(bus, again) == []
    await bus.delete_subscription(again)
    await bus.delete_subscription(some)
    assert bus.topic("t").size_bytes == 0
    await settle(bus)
    assert left_over(disks.open["main"]) == {}
    bus = await reopen(bus, disks, clock)
    await bus.close()


def left_over(store: MemoryStore) -> dict[str, int]:
    """Return the tables of a message store that have rows of messages, and how many."""
    about_messages = (BLOCKS, BLOCK_INDEX, MARKS, GONE, HOLDS, SESSIONS, ATTEMPTS)
    return {table.name: len(store.tables[table]) for table in about_messages if store.tables[table]}


@pytest.mark.promise("B3", "B8")
@run
async def test_a_crash_in_the_middle_of_a_deletion_leaves_nothing_behind(
    clock: ManualClock,
) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    _, _, ordered, _ = names = await busy_topic(bus, clock)
    await settle(bus)
    for name in names:
        if name != ordered:
            await bus.delete_subscription(name)
    crash(bus)
    bus = await disks.bus(clock)
    sound(bus)
    assert bus.topic("t").subscriptions == (ordered,)
    async with await bus.accept_session(ordered, "s") as session:
        await session.set_state(None)
    await bus.delete_subscription(ordered)
    await bus.purge("t")
    crash(bus)
    bus = await disks.bus(clock)
    sound(bus)
    await settle(bus)
    assert left_over(disks.open["main"]) == {"gone": 1}, "the topic's own: what was purged there"
    assert bus.topic("t").size_bytes == 0
    await bus.close()


@pytest.mark.promise("B3")
@pytest.mark.parametrize("crashes", [True, False])
def test_a_deleted_topic_is_gone_with_everything(crashes: bool, clock: ManualClock) -> None:
    @run
    async def test() -> None:
        disks = Disks()
        bus = await disks.bus(clock)
        plain, *_ = names = await busy_topic(bus, clock)
        await settle(bus)
        waiting = asyncio.create_task(bus.accept_session(names[2], "none", wait_ms=HOUR))
        receiving = asyncio.create_task(bus.receiver(names[1]).receive(20, wait_ms=HOUR))
        await asyncio.sleep(0)
        await receiving
        receiving = asyncio.create_task(bus.receiver(names[1]).receive(wait_ms=HOUR))
        await waiting
        await bus.delete_topic("t")
        with pytest.raises(EntityNotFound):
            await receiving
        for name in ("t", *names):
            with pytest.raises(EntityNotFound):
                bus.peek(name)
        if crashes:
            crash(bus)
        else:
            await bus.close()
        bus = await disks.bus(clock)
        await settle(bus)
        assert left_over(disks.open["main"]) == {}
        assert bus.topics() == []
        await topic_with(bus, "plain")
        assert there(bus, plain) == []
        assert numbers_of(await send(bus, "t", "1")) == [1]
        sound(bus)
        await bus.close()

    test()


def numbers_of(sent: list[Sent]) -> list[int]:
    return [one.sequence_number for one in sent]


@pytest.mark.promise("P10")
@run
async def test_what_is_decided_at_the_same_time_leaves_no_half_made_entity(
    clock: ManualClock,
) -> None:
    """A subscription that outlives its topic on the disk would keep the bus from opening."""

    async def at_once(*names: Callable[[Bus, str], Awaitable[object]]) -> None:
        disks = Disks()
        bus = await disks.bus(clock)
        (name,) = await topic_with(bus, "s")
        results = await asyncio.gather(*(call(bus, name) for call in names), return_exceptions=True)
        assert all(isinstance(one, OnibusError | str | None) for one in results), results
        assert sum(isinstance(one, EntityExists) for one in results) == len(names) - 1
        await settle(bus)
        bus = await reopen(bus, disks, clock)
        await bus.close()

    async def new(bus: Bus, name: str) -> object:
        return await bus.create_subscription("t", "new")

    async def change(bus: Bus, name: str) -> object:
        await bus.change_subscription(name, lock_duration_ms=5_000)
        return None

    async def rule(bus: Bus, name: str) -> object:
        await bus.create_rule(name, Rule("new"))
        return None

    async def end(bus: Bus, name: str) -> object:
        await bus.delete_subscription(name)
        return None

    async def end_topic(bus: Bus, name: str) -> object:
        await bus.delete_topic("t")
        return None

    for call in (new, change, rule, end, end_topic):
        await at_once(call, end_topic)
        await at_once(end_topic, call)
    await at_once(rule, end)
    await at_once(new, new)


async def tidy(bus: Bus, topic: str = "t") -> None:
    for partition in bus.broker.find(topic).partitions:
        while tidying.tidy(partition):
            await settle(bus)


@pytest.mark.promise("B3", "B8")
@run
async def test_compaction_of_a_topic(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock, reserve_bytes=0) as bus:
        await bus.create_topic("t")
        a = await bus.create_subscription("t", "a")
        few = await bus.create_subscription("t", "few", rules=[sql("r", "n % 40 = 7", "SET x = n")])
        ordered = await bus.create_subscription(
            "t", "ordered", requires_session=True, rules=[sql("r", "n % 40 = 9")]
        )
        for start in range(0, 8_000, 40):
            await bus.send_batch(
                "t",
                [
                    msg("x" * 500, session_id=f"s{n % 3}", properties={"n": n})
                    for n in range(start, start + 40)
                ],
            )
        receiver = bus.receiver(a)
        while held := await receiver.receive(1_000):
            await receiver.complete(held)
        held = await get(bus, few, 20)
        await bus.receiver(few).defer(held[3])
        before = whole_picture(bus)
        size = partition_at(bus, "t").log.total_bytes
        await tidy(bus)
        sound(bus)
        assert partition_at(bus, "t").log.total_bytes < size / 10
        assert whole_picture(bus) == before
        await bus.receiver(few).complete(*held[4:])
        before = whole_picture(bus)
    async with Bus.open(tmp_path, clock=clock, reserve_bytes=0) as bus:
        sound(bus)
        assert whole_picture(bus) == before
        await bus.delete_subscription(few)
        sound(bus)
        async with await bus.accept_session(ordered, "s1") as session:
            found = await session.receive(500)
            assert numbers(found) == sorted(numbers(found))
            await session.complete(found)
        await bus.purge(ordered)
        assert bus.topic("t").size_bytes == 0
        assert partition_at(bus, "t").log.places == []
        sound(bus)


@pytest.mark.promise("R1")
@run
async def test_retention_keeps_rows_that_no_subscription_wants(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    (name,) = await topic_with(bus, "s", retention_ms=HOUR)
    await send(bus, "t", "1", "2")
    await get(bus, name, delete=True)
    await bus.delete_subscription(name)
    bus = await reopen(bus, disks, clock)
    await send(bus, "t", "3")
    assert len(partition_at(bus, "t").log.places) == 3
    await pass_ms(bus, clock, 2 * HOUR)
    await tidy(bus)
    assert partition_at(bus, "t").log.places == []
    late = await bus.create_subscription("t", "late")
    assert (there(bus, late), await bus.purge(late, Filter())) == ([], 0)
    bus = await reopen(bus, disks, clock)
    await bus.close()
