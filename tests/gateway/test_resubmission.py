"""Resubmission: dead letters are sent again by the broker itself, whole or not at all (X6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onibus import Bus, ReceivedMessage
from onibus.core.errors import (
    BusClosed,
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    InvalidFilter,
    InvalidOperation,
    MessageNotFound,
    MessageTooLarge,
    PartitionOffline,
    QuotaExceeded,
)
from onibus.core.inspection import Filter
from onibus.gateway import resubmitting
from onibus.shard.replies import Reply, answer
from onibus.shard.runner import Step
from tests.bus_helpers import (
    HOUR,
    KEYS,
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    get,
    get_one,
    index_in,
    msg,
    numbers,
    pass_ms,
    peek_everything,
    picture,
    pull,
    run,
    send,
    settle,
)
from tests.gateway.fragile import crash_everywhere, fail_everywhere, quiet
from tests.gateway.topic_helpers import dead, sound, there, topic_with

stores = pytest.mark.parametrize("stores", [("a",), ("a", "b")])


async def bury(bus: Bus, name: str, reason: str = "bad") -> list[ReceivedMessage]:
    """Dead-letter everything that an entity gives out."""
    buried = await get(bus, name)
    for message in buried:
        await bus.receiver(name).dead_letter(message, reason=reason)
    return buried


async def buried_queue(bus: Bus, *texts: str, name: str = "q", **settings: Any) -> None:
    """Make a queue with dead letters."""
    await bus.create_queue(name, **settings)
    for text in texts:
        await send(bus, name, text, message_id=text)
    await bury(bus, name)


@pytest.mark.promise("X6", "S2")
@stores
@run
async def test_one_and_many(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await buried_queue(bus, *"0123")
        done = await bus.resubmit("q", [2])
        assert (done.moved, done.refused) == ({2: 5}, {})
        done = await bus.resubmit("q", [4, 1, 4])
        assert done.moved == {4: 6, 1: 7}
        assert there(bus, "q") == ["1", "3", "0"]
        assert dead(bus, "q") == [("2", "bad")]
        again = await get(bus, "q")
        assert [m.message.enqueued_sequence_number for m in again] == [2, 4, 1]
        assert [(m.delivery_count, m.dead_letter_reason) for m in again] == [(0, None)] * 3
        # The first number is kept, however often it comes back.
        for message in again:
            await bus.receiver("q").dead_letter(message)
        done = await bus.resubmit("q", [5])
        assert [m.message.enqueued_sequence_number for m in peek_everything(bus, "q")] == [2]
        sound(bus)


@pytest.mark.promise("X6")
@run
async def test_all_of_them_or_none(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await buried_queue(bus, "dead", "held", "deferred")
        await send(bus, "q", "alive")
        back, held, deferred = await get(bus, "q", 3, dead_letters=True)
        await bus.receiver("q").defer(deferred)
        await bus.receiver("q").abandon(back)
        before = picture(bus, "q")
        for wrong in ([1, 2], [1, 3], [1, 4], [1, 99], [1, -1], [1, "1"], [1, []]):
            with pytest.raises(MessageNotFound):
                await bus.resubmit("q", wrong)  # type: ignore[arg-type]
        for bad in ([], 7, [1] * 10_001):
            with pytest.raises(InvalidArgument):
                await bus.resubmit("q", bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            await bus.resubmit("q")
        with pytest.raises(InvalidArgument):
            await bus.resubmit("q", [1], where=Filter())
        assert picture(bus, "q") == before
        # By a filter those that somebody holds, or has set aside, are left.
        assert (await bus.resubmit("q", where=Filter())).moved == {1: 5}
        await bus.receiver("q").complete(held)


@pytest.mark.promise("X6", "X5")
@stores
@run
async def test_by_filter(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("p", enable_partitioning=True)
        await bus.send_batch(
            "p", [msg(f"{n}", partition_key=KEYS[n % 8], properties={"n": n}) for n in range(32)]
        )
        await bury(bus, "p")
        assert len(dead(bus, "p")) == 32
        some = await bus.resubmit("p", where=Filter(sql="n < 10"))
        assert len(some.moved) == 10
        assert sorted(there(bus, "p"), key=int) == [str(n) for n in range(10)]
        none = await bus.resubmit("p", where=Filter(body_contains=b"nothing of the kind"))
        assert (none.moved, none.refused) == ({}, {})
        rest = await bus.resubmit("p", where=Filter())
        assert len(rest.moved) == 22
        assert dead(bus, "p") == []
        assert len(set(rest.moved.values())) == 22
        for wrong, error in ((Filter(state="active"), InvalidArgument),
                             (Filter(sql="n <"), InvalidFilter)):  # fmt: skip
            with pytest.raises(error):
                await bus.resubmit("p", where=wrong)
        sound(bus)


@pytest.mark.promise("X6")
@stores
@run
async def test_a_dry_run_tells_and_changes_nothing(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await buried_queue(bus, "small", "x" * 100)
        await bus.create_queue("tiny", max_message_bytes=60)
        before = picture(bus, "q")
        assert (await bus.resubmit("q", [1, 2], dry_run=True)).moved == {1: None, 2: None}
        done = await bus.resubmit("q", where=Filter(), to="tiny", dry_run=True)
        assert (done.moved, list(done.refused)) == ({1: None}, [2])
        with pytest.raises(MessageNotFound):
            await bus.resubmit("q", [3], dry_run=True)
        assert picture(bus, "q") == before
        assert there(bus, "tiny") == []


@pytest.mark.promise("X6")
@stores
@run
async def test_to_another_entity(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await buried_queue(bus, "small", "x" * 100)
        await bus.create_queue("tiny", max_message_bytes=60)
        await bus.create_queue("sessions", requires_session=True)
        await bus.create_queue("p", enable_partitioning=True)
        names = await topic_with(bus, "left", "right")
        with pytest.raises(MessageTooLarge):
            await bus.resubmit("q", [1, 2], to="tiny")
        assert len(dead(bus, "q")) == 2
        done = await bus.resubmit("q", where=Filter(), to="tiny")
        assert done.moved == {1: 1}
        assert "bytes" in done.refused[2]
        done = await bus.resubmit("q", where=Filter(), to="sessions")
        assert (done.moved, list(done.refused)) == ({}, [2])
        done = await bus.resubmit("q", [2], to="T")
        assert done.moved == {2: 1}
        assert there(bus, "tiny") == ["small"]
        for name in names:
            assert there(bus, name) == ["x" * 100]
        # A subscription's dead letters may go elsewhere too.
        await bury(bus, names[0])
        await bus.resubmit(names[0], [1], to="p")
        assert there(bus, "p") == ["x" * 100]
        for to, error in (
            ("nowhere", EntityNotFound),
            (names[0], InvalidOperation),
            (7, EntityNotFound),
        ):
            with pytest.raises(error):
                await bus.resubmit("q", where=Filter(), to=to)  # type: ignore[arg-type]
        await bus.change_queue("tiny", status="disabled")
        with pytest.raises(EntityDisabled):
            await bus.resubmit("q", where=Filter(), to="tiny")
        with pytest.raises(InvalidOperation):
            await bus.resubmit("t", where=Filter())


@pytest.mark.promise("X6", "B3")
@stores
@run
async def test_back_into_one_subscription_only(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        left, right = await topic_with(
            bus, "left", "right", enable_partitioning=True, requires_duplicate_detection=True
        )
        await bus.send_batch("t", [msg(key, partition_key=key, message_id="m") for key in KEYS])
        await bury(bus, left)
        # It has no rules any more, and gets its own back all the same.
        await bus.delete_rule(left, "$Default")
        assert len((await bus.resubmit(left, where=Filter())).moved) == 16
        assert there(bus, left) == there(bus, right) == KEYS
        assert dead(bus, left) == []
        sound(bus)


@pytest.mark.promise("X6", "D5", "D1")
@stores
@run
async def test_a_new_id_only_where_the_old_one_is_remembered(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await buried_queue(bus, "old", requires_duplicate_detection=True)
        await pass_ms(bus, clock, 10 * MINUTE)
        await send(bus, "q", "young", message_id="young")
        await bury(bus, "q")
        await bus.create_queue("other", requires_duplicate_detection=True)
        await bus.resubmit("q", [1, 2])
        old, young = peek_everything(bus, "q")
        assert (old.message_id, young.body) == ("old", b"young")
        assert young.message_id is not None
        assert young.message_id != "young"
        assert young.message_id.startswith("young")
        assert bus.queue("q").duplicates_dropped == 0
        # Both ids of it are remembered now; and again it is sent, not dropped.
        await bury(bus, "q")
        await bus.resubmit("q", where=Filter())
        assert there(bus, "q") == ["old", "young"]
        assert len({m.message_id for m in peek_everything(bus, "q")} | {"old", "young"}) == 4
        await bury(bus, "q")
        await bus.resubmit("q", where=Filter(), to="other")
        assert len(there(bus, "other")) == 2


@pytest.mark.promise("X6", "P4", "D3")
@run
async def test_a_new_id_leaves_a_message_in_its_partition(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("p", enable_partitioning=True, requires_duplicate_detection=True)
        sent = await bus.send_batch("p", [msg(key, message_id=key) for key in KEYS])
        await bury(bus, "p")
        done = await bus.resubmit("p", [one.sequence_number for one in sent])
        assert done.moved == {one.sequence_number: one.sequence_number + 1 for one in sent}
        assert len({m.message_id for m in peek_everything(bus, "p")} | set(KEYS)) == 32


@pytest.mark.promise("X6")
@stores
@run
async def test_a_new_id_makes_no_message_too_large(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue(
            "p", enable_partitioning=True, requires_duplicate_detection=True, max_message_bytes=200
        )
        body = "x" * 150
        for key in KEYS[:2]:
            for size in range(150, 200):
                try:
                    await send(bus, "p", body[:1] * size, message_id=f"{size}", partition_key=key)
                except MessageTooLarge:
                    break
        buried = await bury(bus, "p")
        done = await bus.resubmit("p", [m.sequence_number for m in buried])
        assert len(done.moved) == len(buried) > 20
        await quiet(bus)
        assert len(there(bus, "p")) == len(buried)
        sound(bus)


@pytest.mark.promise("X6", "F1", "F6", "F7")
@run
async def test_fifo_queues(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue(
            "f", fifo=True, content_based_deduplication=True, content_matches_any_id=True
        )
        await send(bus, "f", "0", "1", session_id="g")
        receiver = bus.fifo_receiver("f")
        for message in await receiver.receive(2):
            await receiver.dead_letter(message, reason="bad")
        done = await bus.resubmit("f", where=Filter(session_id="g"))
        assert done.moved == {1: 3, 2: 4}
        assert bodies(await receiver.receive(5)) == ["0", "1"]


@pytest.mark.promise("X6", "B6")
@run
async def test_hops_are_counted_anew(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("end")
        target = "end"
        for name in ("h4", "h3", "h2", "h1", "h0"):
            await bus.create_queue(name, forward_to=target)
            target = name
        await send(bus, "h0", "far")
        await quiet(bus)
        assert dead(bus, "h4") == [("far", "MaxTransferHopCountExceeded")]
        await bus.resubmit("h4", where=Filter())
        await quiet(bus)
        (arrived,) = peek_everything(bus, "end")
        assert (arrived.message.hop_count, arrived.message.enqueued_sequence_number) == (1, 1)


@pytest.mark.promise("X6")
@run
async def test_what_dies_again_at_once_is_not_sent_for_ever(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_topic("t")
        name = await bus.create_subscription("t", "s", requires_session=True)
        count = resubmitting.A_SLICE
        await bus.send_batch("t", [msg("no session")] * count)
        assert len(dead(bus, name)) == count
        done = await bus.resubmit(name, where=Filter())
        assert len(done.moved) == count
        assert len(dead(bus, name)) == count


@pytest.mark.promise("X6")
@run
async def test_many_slices(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resubmitting, "A_SLICE", 2)
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q")
        await bus.create_queue("out")
        await bus.send_batch("q", [msg(f"{n % 10}") for n in range(3_000)])
        held = await bus.receiver("q").receive(3_000)
        tokens = [m for m in held if m.body != b"9"]
        await bus.receiver("q").complete(tokens)
        for message in held:
            if message.body == b"9":
                await bus.receiver("q").dead_letter(message)
        nothing = await bus.resubmit("q", where=Filter(body_contains=b"no"))
        assert nothing.moved == {}
        assert len((await bus.resubmit("q", where=Filter(), dry_run=True)).moved) == 300
        assert len((await bus.resubmit("q", where=Filter(), to="out")).moved) == 300
        assert numbers(peek_everything(bus, "out")) == list(range(1, 301))


@pytest.mark.promise("X6")
@run
async def test_a_subscription_that_is_deleted_and_a_bus_that_is_closed_between_two_slices(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resubmitting, "A_SLICE", 1)
    deleted = False

    def after_the_change(call_soon: Any) -> Step:
        """Wait between two slices until the subscription is deleted, or the bus is closed."""

        def begin(reply: Reply) -> None:
            if bus.broker.closed if deleted else left not in entities:
                answer(reply, None)
            else:
                call_soon(lambda: begin(reply))

        return begin

    monkeypatch.setattr(resubmitting, "turn_over", after_the_change)
    async with Disks().bus(clock, "a", "b") as bus:
        entities = bus.broker.namespace.entities
        await bus.create_topic("t")
        # Messages without a session are dead letters from the start.
        left, right = [
            await bus.create_subscription("t", name, requires_session=True)
            for name in ("left", "right")
        ]
        assert left in entities
        await bus.send_batch("t", [msg("x")] * 3_000)
        asked = asyncio.create_task(bus.resubmit(left, where=Filter(), dry_run=True))
        await bus.delete_subscription(left)
        with pytest.raises(EntityNotFound):
            await asked
        deleted = True
        assert len(dead(bus, right)) == 3_000
        # The rows of a deleted subscription are released in slices.
        await settle(bus)
        sound(bus)
        asked = asyncio.create_task(bus.resubmit(right, where=Filter(), dry_run=True))
        await asyncio.sleep(0)
    with pytest.raises(BusClosed):
        await asked


@pytest.mark.promise("X6", "P5")
@run
async def test_a_destination_that_is_down_or_full_leaves_them_dead(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await buried_queue(bus, *"0123")
        await bus.create_queue("out", max_size_bytes=30)
        before = picture(bus, "q")
        with pytest.raises(QuotaExceeded):
            await bus.resubmit("q", [1, 2, 3, 4], to="out")
        pull(bus, bus.broker.find("out").stores[0])
        for how in ({"numbers": [1, 2]}, {"where": Filter()}):
            with pytest.raises(PartitionOffline):
                await bus.resubmit("q", to="out", **how)
        assert picture(bus, "q") == before
        await pass_ms(bus, clock, SECOND)
        await bus.create_queue("p", enable_partitioning=True)
        await bus.send_batch("p", [msg(key, partition_key=key) for key in KEYS])
        await bury(bus, "p")
        pull(bus, "b")
        for how in ({"where": Filter()}, {"numbers": [(index_in(bus, "p", "b") << 48) + 1]}):
            with pytest.raises(PartitionOffline):
                await bus.resubmit("p", **how)
        assert len((await bus.resubmit("p", [(index_in(bus, "p", "a") << 48) + 1])).moved) == 1


@pytest.mark.promise("X6", "B2", "S5")
@run
async def test_time_begins_anew(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("q", dead_letter_on_expiration=True)
        await send(bus, "q", "short", time_to_live_ms=MINUTE)
        await bus.schedule("q", msg("was scheduled", time_to_live_ms=SECOND), clock.wall() + MINUTE)
        await pass_ms(bus, clock, HOUR)
        await pass_ms(bus, clock, MINUTE)
        assert len(dead(bus, "q")) == 2
        await bus.resubmit("q", where=Filter())
        assert [m.state for m in peek_everything(bus, "q")] == ["active", "active"]
        assert bodies([await get_one(bus, "q")]) == ["short"]
        await pass_ms(bus, clock, 2 * SECOND)
        assert dead(bus, "q") == [("was scheduled", "TTLExpiredException")]


# Whatever fails: each dead letter is still there, or was sent again, once.


async def buried_parts(bus: Bus) -> Any:
    await bus.create_queue("p", enable_partitioning=True, requires_duplicate_detection=True)
    sent = await bus.send_batch("p", [msg(key, partition_key=key, message_id="m") for key in KEYS])
    await bury(bus, "p")
    return [one.sequence_number for one in sent]


async def resubmit_all(bus: Bus, given: Any) -> None:
    await bus.resubmit("p", given)


async def all_moved(bus: Bus, given: Any) -> bool:
    alive, left = peek_everything(bus, "p"), peek_everything(bus, "p", dead_letters=True)
    if not alive:
        assert numbers(left) == given
        return False
    assert left == []
    assert numbers(alive) == [number + 1 for number in given]
    assert bodies(alive) == KEYS
    assert all(m.message_id != "m" for m in alive)
    return True


@pytest.mark.promise("X6", "S3")
@stores
@run
async def test_a_crash(clock: ManualClock, stores: tuple[str, ...]) -> None:
    await crash_everywhere(clock, buried_parts, resubmit_all, all_moved, stores)


@pytest.mark.promise("X6", "S3")
@run
async def test_a_store_that_fails(clock: ManualClock) -> None:
    await fail_everywhere(clock, buried_parts, resubmit_all, all_moved)
