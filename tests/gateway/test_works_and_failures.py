"""Works over several stores: whatever fails, and whenever, all of it happens or nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from onibus import Bus, Rule, SqlFilter
from onibus.bus import OpeningBus
from onibus.core.errors import (
    DiskNearlyFull,
    EntityNotFound,
    InvalidOperation,
    LockLost,
    PartitionOffline,
    Unknown,
)
from tests.bus_helpers import (
    KEYS,
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    crash,
    get,
    get_one,
    msg,
    numbers,
    pass_ms,
    peek_everything,
    pull,
    reopen_store,
    run,
    send,
    settle,
)
from tests.gateway.fragile import (
    Act,
    FragileDisks,
    FragileStore,
    crash_everywhere,
    fail_everywhere,
    nothing_staged,
    quiet,
    recover,
)
from tests.gateway.topic_helpers import dead, sound, there

stores = pytest.mark.parametrize("stores", [("a",), ("a", "b")])


async def two_queues(bus: Bus) -> Any:
    """Make two queues, in two stores, with messages that are held."""
    for name in ("q0", "q1"):
        await bus.create_queue(name)
        await send(bus, name, *[f"{name}-{verb}" for verb in ("done", "back", "later", "dead")])
    return {name: await get(bus, name) for name in ("q0", "q1")}


async def settle_and_send(bus: Bus, held: Any) -> None:
    async with bus.transaction() as tx:
        for name, (done, back, later, dead) in held.items():
            await tx.complete(name, done)
            await tx.abandon(name, back, properties={"tried": True})
            await tx.defer(name, later)
            await tx.dead_letter(name, dead, reason="broken")
            await tx.send_batch(name, [msg("new-1"), msg("new-2")])


async def both_or_none(bus: Bus, _: Any) -> bool:
    found = []
    for name in ("q0", "q1"):
        left = peek_everything(bus, name)
        dead = peek_everything(bus, name, dead_letters=True)
        found.append("new-1" in bodies(left))
        if found[-1]:
            assert bodies(left) == [f"{name}-back", f"{name}-later", "new-1", "new-2"]
            assert [m.delivery_count for m in left] == [1, 1, 0, 0]
            assert left[0].properties == {"tried": True}
            assert left[1].state == "deferred"
            assert bodies(dead) == [f"{name}-dead"]
            assert dead[0].dead_letter_reason == "broken"
            assert numbers(left) == [2, 3, 5, 6]
        else:
            assert numbers(left) == [1, 2, 3, 4]
            assert dead == []
            assert all("deferred" not in m.state for m in left)
    assert found[0] == found[1]
    return found[0]


@pytest.mark.promise("B5", "S2", "S3")
@run
async def test_a_crash_in_a_transaction_over_two_stores(clock: ManualClock) -> None:
    assert await crash_everywhere(clock, two_queues, settle_and_send, both_or_none) > 3


@pytest.mark.promise("B5")
@run
async def test_a_transaction_over_two_stores_replies_after_two_commits(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        held = await two_queues(bus)
        await quiet(bus)
        shards: Any = (bus.broker.namespace, *bus.broker.stores.values())
        before = [shard.loop.commits for shard in shards]
        async with bus.transaction() as tx:
            await tx.complete("q0", *held["q0"])
            await tx.send("q1", msg("new"))
        # One stages the settlements. The other one decides, and stores the message as it does.
        after = [shard.loop.commits for shard in shards]
        assert sum(after) - sum(before) == 2
        assert after[0] == before[0]
        assert there(bus, "q0") == []
        assert there(bus, "q1")[-1] == "new"
        await recover(bus, clock)
        nothing_staged(disks)


class GatedDisks(FragileDisks):
    """Stores in memory, one of which commits only while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gated = ""
        self.waits, self.gate = threading.Event(), threading.Event()

    def before_commit(self, store: FragileStore) -> None:
        if store.name == self.gated:
            self.waits.set()
            self.gate.wait()
        super().before_commit(store)


@pytest.mark.promise("B5")
@run
async def test_the_store_that_decides_fails_before_it_decides(clock: ManualClock) -> None:
    disks = GatedDisks()
    async with disks.bus(clock, "a", "b") as bus:
        for name in ("q0", "q1"):
            await bus.create_queue(name)
        await send(bus, "q0", "held")
        held = await get_one(bus, "q0")
        decider, disks.gated = (bus.broker.find(name).stores[0] for name in ("q0", "q1"))
        tx = bus.transaction()
        await tx.complete("q0", held)
        await tx.send("q0", msg("new" * 99))
        await tx.send("q1", msg("new"))
        committed = asyncio.create_task(tx.commit())
        await asyncio.to_thread(disks.waits.wait)
        # It comes back without its hold of the message, while the other store stages its part.
        pull(bus, decider)
        await reopen_store(bus, decider)
        disks.gate.set()
        with pytest.raises(PartitionOffline, match="nothing changed"):
            await committed
        await recover(bus, clock)
        assert (there(bus, "q0"), there(bus, "q1")) == (["held"], [])
        nothing_staged(disks)
        sound(bus)


@pytest.mark.promise("B5", "S2", "S3")
@run
async def test_a_crash_in_a_transaction_in_one_store(clock: ManualClock) -> None:
    commits = await crash_everywhere(
        clock, two_queues, settle_and_send, both_or_none, stores=("a",)
    )
    assert commits == 1


@pytest.mark.promise("B5", "S2", "S3")
@run
async def test_a_store_fails_in_a_transaction(clock: ManualClock) -> None:
    await fail_everywhere(clock, two_queues, settle_and_send, both_or_none)


# Sessions, groups, topics and dead letters in one transaction


async def all_kinds(bus: Bus) -> Any:
    """Make entities of all kinds, spread over the stores, with a held message in each."""
    await bus.create_queue("sessions", requires_session=True)
    await bus.create_queue("fifo", fifo=True, content_based_deduplication=True)
    await bus.create_topic("topic", requires_duplicate_detection=True)
    await bus.create_queue("dead")
    await bus.create_subscription("topic", "sub")
    await send(bus, "sessions", "s0", "s1", "s2", session_id="x")
    await send(bus, "fifo", "f0", "f1", "f2", session_id="g")
    await send(bus, "topic", "t0", message_id="t0")
    await send(bus, "dead", "d0")
    await bus.receiver("dead").dead_letter(await get_one(bus, "dead"))
    session = await bus.accept_session("sessions", "x")
    return {
        "sessions": await session.receive(2),
        "fifo": await bus.fifo_receiver("fifo").receive(2),
        "topic/subscriptions/sub": await get(bus, "topic/subscriptions/sub"),
        "dead": await get(bus, "dead", dead_letters=True),
    }


async def settle_all_kinds(bus: Bus, held: Any) -> None:
    async with bus.transaction() as tx:
        for name, messages in held.items():
            await tx.complete(name, *messages)
        await tx.send("sessions", msg("s3", session_id="x"))
        await tx.send("fifo", msg("f3", session_id="g"))
        await tx.send_batch("topic", [msg("t1", message_id="t1"), msg("t0", message_id="t0")])


async def in_order(bus: Bus, _: Any) -> bool:
    """Whatever happened, sessions and groups give out what is left of them in order."""
    happened = "s3" in bodies(peek_everything(bus, "sessions"))
    await pass_all_locks(bus)
    session = await bus.accept_session("sessions", "x")
    found = {
        "sessions": bodies(await session.receive(9)),
        "fifo": bodies(await bus.fifo_receiver("fifo").receive(9)),
        "sub": bodies(await get(bus, "topic/subscriptions/sub")),
        "dead": bodies(await get(bus, "dead", dead_letters=True)),
    }
    await session.close()
    if happened:
        assert found == {"sessions": ["s2", "s3"], "fifo": ["f2", "f3"], "sub": ["t1"], "dead": []}
    else:
        assert found == {
            "sessions": ["s0", "s1", "s2"],
            "fifo": ["f0", "f1", "f2"],
            "sub": ["t0"],
            "dead": ["d0"],
        }
    (sent,) = await send(bus, "topic", "again", message_id="t1")
    assert (sent.duplicate_of is not None) == happened
    return happened


async def pass_all_locks(bus: Bus) -> None:
    """Locks run out; what is remembered is remembered longer than that."""
    clock: Any = bus.broker.clock.machine
    await pass_ms(bus, clock, 2 * MINUTE)
    await quiet(bus)


@pytest.mark.promise("B5", "B4", "F10", "D10")
@run
async def test_a_crash_in_a_transaction_of_all_kinds(clock: ManualClock) -> None:
    await crash_everywhere(clock, all_kinds, settle_all_kinds, in_order)


@pytest.mark.promise("B5", "B4", "F10", "D10")
@run
async def test_a_store_fails_in_a_transaction_of_all_kinds(clock: ManualClock) -> None:
    await fail_everywhere(clock, all_kinds, settle_all_kinds, in_order)


@pytest.mark.promise("B5")
@run
async def test_what_was_refused_while_it_was_staged_can_be_tried_again(clock: ManualClock) -> None:
    disks = FragileDisks()
    bus = await disks.bus(clock, "a", "b")
    await bus.create_queue("q0")
    await bus.create_queue("q1")
    tx = bus.transaction()
    for name in ("q0", "q1"):
        await tx.send(name, msg(name))
    # The first store decides, since neither gets more bytes.
    disks.fail(bus.broker.find("q1").stores[0], 0, kept=True)
    with pytest.raises(PartitionOffline, match="nothing changed"):
        await tx.commit()
    await recover(bus, clock)
    await tx.commit()
    assert (there(bus, "q0"), there(bus, "q1")) == (["q0"], ["q1"])
    await quiet(bus)
    nothing_staged(disks)
    await bus.close()


# What is staged while something else happens


async def pinned(disks: FragileDisks, clock: ManualClock, **settings: Any) -> tuple[Bus, Any]:
    """Return a bus in which a transaction over two stores is staged and in doubt.

    The store that gets its message has failed over its decision, which was kept or was not.
    """
    kept = settings.pop("kept")
    bus = await disks.bus(clock, "a", "b")
    await bus.create_queue("q0", **settings)
    await bus.create_queue("q1")
    await send(bus, "q0", "held", time_to_live_ms=2 * MINUTE)
    held = await get_one(bus, "q0")
    tx = bus.transaction()
    await tx.complete("q0", held)
    await tx.send("q1", msg("new"))
    disks.fail(bus.broker.find("q1").stores[0], 0, kept=kept)
    with pytest.raises(Unknown):
        await tx.commit()
    for act in (tx.commit(), tx.rollback()):
        with pytest.raises(InvalidOperation, match="outcome is unknown"):
            await act
    return bus, held


@pytest.mark.promise("B5")
@pytest.mark.parametrize("kept", [True, False])
@run
async def test_what_is_in_doubt_is_nobody_elses(clock: ManualClock, kept: bool) -> None:
    disks = FragileDisks()
    bus, held = await pinned(disks, clock, kept=kept)
    receiver = bus.receiver("q0")
    for act in (receiver.complete(held), receiver.abandon(held), receiver.renew(held)):
        with pytest.raises(LockLost):
            await act
    assert await get(bus, "q0") == []
    assert await bus.purge("q0") == 0
    await recover(bus, clock)
    if kept:
        assert (there(bus, "q0"), there(bus, "q1")) == ([], ["new"])
    else:
        # It goes back without a delivery being counted.
        assert (there(bus, "q0"), there(bus, "q1")) == (["held"], [])
        assert (await get_one(bus, "q0")).delivery_count == 0
    nothing_staged(disks)
    await bus.close()


@pytest.mark.promise("B5", "B2")
@run
async def test_what_outlived_its_time_while_it_was_in_doubt_expires_then(
    clock: ManualClock,
) -> None:
    disks = FragileDisks()
    bus, _ = await pinned(disks, clock, kept=False, dead_letter_on_expiration=True)
    clock.advance(2 * MINUTE)
    await recover(bus, clock)
    assert dead(bus, "q0") == [("held", "TTLExpiredException")]
    sound(bus)
    nothing_staged(disks)
    await bus.close()


@pytest.mark.promise("B5")
@pytest.mark.parametrize("kept", [True, False])
@run
async def test_a_store_stays_down_over_a_restart(clock: ManualClock, kept: bool) -> None:
    disks = FragileDisks()
    bus, _ = await pinned(disks, clock, kept=kept)
    place = bus.broker.find("q1").stores[0]
    crash(bus)
    disks.broken.add(place)
    bus = await disks.bus(clock, "a", "b")
    await recover(bus, clock)
    # Only the store that is down knows whether it is completed: no receiver gets it until then.
    assert await get(bus, "q0") == []
    assert there(bus, "q0") == ["held"]
    disks.broken.clear()
    await recover(bus, clock)
    assert there(bus, "q0") == ([] if kept else ["held"])
    assert there(bus, "q1") == (["new"] if kept else [])
    async with bus.transaction() as tx:
        await tx.send("q0", msg("later"))
        await tx.send("q1", msg("later"))
    assert there(bus, "q1")[-1] == there(bus, "q0")[-1] == "later"
    await quiet(bus)
    nothing_staged(disks)
    sound(bus)
    await bus.close()


@pytest.mark.promise("B5")
@pytest.mark.parametrize("deleted", ["q0", "q1"])
@run
async def test_an_entity_that_is_deleted_while_a_work_is_under_way(
    clock: ManualClock, deleted: str
) -> None:
    for turns in range(12):
        disks = FragileDisks()
        bus = await disks.bus(clock, "a", "b")
        await bus.create_queue("q0")
        await bus.create_queue("q1")
        tx = bus.transaction()
        await tx.send("q0", msg("new"))
        await tx.send("q1", msg("new"))
        committing = asyncio.create_task(tx.commit())
        for _ in range(turns):
            await asyncio.sleep(0.0003)
        await bus.delete_queue(deleted)
        left = "q1" if deleted == "q0" else "q0"
        try:
            await committing
            happened = True
        except EntityNotFound:
            happened = False
        except Unknown:
            happened = True
        await recover(bus, clock)
        assert there(bus, left) == (["new"] if happened else [])
        nothing_staged(disks)
        sound(bus)
        await bus.close()


@pytest.mark.promise("B5")
@stores
@run
async def test_settling_works_when_the_disk_is_nearly_full(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    disks = FragileDisks()
    bus = await OpeningBus(list(stores), disks._store, clock, 1 << 20)
    for name in ("q0", "q1"):
        await bus.create_queue(name)
        await send(bus, name, "held")
    held = {name: await get_one(bus, name) for name in ("q0", "q1")}
    for name in stores:
        disks.open[name].free = lambda: 0  # type: ignore[method-assign]
    for name in ("q0", "q1"):
        # How much is free is asked now and then only.
        with pytest.raises(DiskNearlyFull):
            await send(bus, name, *["more"] * 20)
        await bus.purge(name)
    tx = bus.transaction()
    for name, message in held.items():
        await tx.complete(name, message)
    await tx.send("q0", msg("new"))
    for _ in range(2):
        with pytest.raises(DiskNearlyFull):
            await tx.commit()
    await tx.rollback()
    async with bus.transaction() as tx:
        for name, message in held.items():
            await tx.complete(name, message)
    assert (there(bus, "q0"), there(bus, "q1")) == ([], [])
    await bus.close()


# The namespace's own store, while entities are made, changed and deleted


async def entities(bus: Bus) -> Any:
    await bus.create_queue("q", enable_partitioning=True)
    await bus.create_topic("t")
    await bus.create_subscription("t", "s")
    await send(bus, "q", "x")
    await send(bus, "t", "x")


DECISIONS: dict[str, Act] = {
    "create queue": lambda bus, _: bus.create_queue("new", enable_partitioning=True),
    "create topic": lambda bus, _: bus.create_topic("new"),
    "create subscription": lambda bus, _: bus.create_subscription("t", "new"),
    "create rule": lambda bus, _: bus.create_rule("t/subscriptions/s", Rule("new")),
    "change rule": lambda bus, _: bus.change_rule(
        "t/subscriptions/s", Rule("$Default", SqlFilter("1 = 1"))
    ),
    "delete rule": lambda bus, _: bus.delete_rule("t/subscriptions/s", "$Default"),
    "change queue": lambda bus, _: bus.change_queue("q", max_delivery_count=3),
    "change topic": lambda bus, _: bus.change_topic("t", user_metadata="new"),
    "change subscription": lambda bus, _: bus.change_subscription(
        "t/subscriptions/s", forward_to="q"
    ),
    "delete queue": lambda bus, _: bus.delete_queue("q"),
    "delete topic": lambda bus, _: bus.delete_topic("t"),
    "delete subscription": lambda bus, _: bus.delete_subscription("t/subscriptions/s"),
}


def plan(bus: Bus) -> Any:
    """Return which entities there are, as memory knows them."""
    found = bus.broker.namespace.entities
    return {
        name: (one.settings, one.rules, sorted(one.subscriptions)) for name, one in found.items()
    }


@pytest.mark.promise("P10")
@pytest.mark.parametrize("decision", DECISIONS)
@run
async def test_a_decision_over_which_the_namespace_fails(clock: ManualClock, decision: str) -> None:
    plans: dict[bool, Any] = {}

    async def decide(bus: Bus, made: Any) -> None:
        plans[False] = plan(bus)
        await DECISIONS[decision](bus, made)

    async def was_decided(bus: Bus, _: Any) -> bool:
        happened = plan(bus) != plans[False]
        # All of it or nothing: it is what it is without a failure.
        assert plans.setdefault(happened, plan(bus)) == plan(bus)
        # What there is works.
        for name in (*bus.queues(), *bus.topics()):
            await bus.send(name, msg("more", partition_key="k"))
        await quiet(bus)
        return happened

    async with FragileDisks().bus(clock, "a", "b") as bus:
        await entities(bus)
        await decide(bus, None)
        plans[True] = plan(bus)
    await fail_everywhere(clock, entities, decide, was_decided)
    await crash_everywhere(clock, entities, decide, was_decided)


@pytest.mark.promise("P10")
@run
async def test_nothing_is_decided_while_the_namespace_is_down(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await entities(bus)
        disks.fail("namespace", 0, kept=False)
        with pytest.raises(Unknown):
            await bus.create_queue("lost")
        before = plan(bus)
        for act in DECISIONS.values():
            with pytest.raises(PartitionOffline):
                await act(bus, None)
        # Messages come and go as ever; multi-partition operations too.
        await send(bus, "t", "y")
        async with bus.transaction() as tx:
            await tx.send("t", msg("z"))
        assert there(bus, "t/subscriptions/s") == ["x", "y", "z"]
        await bus.send_batch("q", [msg(partition_key=key) for key in KEYS])
        assert len(there(bus, "q")) == 17
        await recover(bus, clock)
        assert plan(bus) == before
        await bus.create_queue("lost")
        # That a work is done is written when nobody waits for it any more.
        await settle(bus)
        nothing_staged(disks)


@run
async def test_an_entity_is_deleted_with_a_part_in_doubt(clock: ManualClock) -> None:
    disks = FragileDisks()
    bus = await disks.bus(clock, "a", "b")
    for name in ("q0", "q1"):
        await bus.create_queue(name)
    await send(bus, "q0", "held")
    held = await get_one(bus, "q0")
    await quiet(bus)
    decider = bus.broker.find("q1").stores[0]
    # The store of q0 has staged its part, and the other one cannot say whether it has decided.
    disks.cut_power(1)
    tx = bus.transaction()
    await tx.complete("q0", held)
    await tx.send("q1", msg("new"))
    with pytest.raises(Unknown):
        await tx.commit()
    crash(bus)
    disks.mend()
    disks.broken = {decider}
    bus = await disks.bus(clock, "a", "b")
    for _ in range(3):
        pull(bus, "a" if decider == "b" else "b")
        await pass_ms(bus, clock, SECOND)
    assert [len(found) for found in bus.broker.works._discarding._in_doubt.values()] == [1]
    await bus.delete_queue("q0")
    await quiet(bus)
    disks.broken = set()
    await recover(bus, clock)
    nothing_staged(disks)
    await bus.close()
