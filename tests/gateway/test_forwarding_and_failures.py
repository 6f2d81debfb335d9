"""Forwarding when destinations are away and stores fail: nothing is lost, nothing comes twice."""

from __future__ import annotations

from typing import Any

import pytest

from onibus import Bus
from onibus.core.errors import Unknown
from tests.bus_helpers import (
    KEYS,
    MINUTE,
    Disks,
    ManualClock,
    bodies,
    crash,
    get,
    index_in,
    msg,
    numbers,
    peek_everything,
    pull,
    run,
    send,
)
from tests.gateway.fragile import (
    FragileDisks,
    crash_everywhere,
    fail_everywhere,
    nothing_staged,
    quiet,
    recover,
)
from tests.gateway.topic_helpers import dead, sound, states, there

stores = pytest.mark.parametrize("stores", [("a",), ("a", "b")])


@pytest.mark.promise("P9", "B6")
@stores
@run
async def test_a_destination_that_is_paused_full_or_gone_keeps_messages_at_the_source(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("out", max_size_bytes=2_500)
        await bus.create_queue("in", forward_to="out")

        async def stays(*expected: str) -> None:
            await recover(bus, clock)
            assert [text[0] for text in there(bus, "in")] == list(expected)

        await bus.change_queue("out", status="send-disabled")
        await send(bus, "in", "0" * 1_000, "1" * 1_000, "2" * 1_000, "3" * 1_000)
        await stays("0", "1", "2", "3")
        await bus.change_queue("out", status="active")
        # Two of them fit.
        await stays("2", "3")
        assert len(await get(bus, "out", delete=True)) == 2
        await stays()
        assert [text[0] for text in there(bus, "out")] == ["2", "3"]
        await bus.delete_queue("out")
        await send(bus, "in", "4")
        await stays("4")
        await bus.create_queue("out")
        await stays()
        assert there(bus, "out") == ["4"]
        # A source that is paused gives nothing to its destination either.
        await bus.change_queue("in", status="receive-disabled")
        await send(bus, "in", "5")
        await stays("5")
        await bus.change_queue("in", status="active")
        await stays()
        assert there(bus, "out") == ["4", "5"]


@pytest.mark.promise("P9")
@run
async def test_a_destination_that_is_down(clock: ManualClock) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("out")
        await bus.create_queue("in", forward_to="out")
        pull(bus, bus.broker.find("out").stores[0])
        await send(bus, "in", *"0123")
        await quiet(bus)
        assert there(bus, "in") == list("0123")
        await recover(bus, clock)
        assert (there(bus, "in"), there(bus, "out")) == ([], list("0123"))
        pull(bus, bus.broker.find("in").stores[0])
        await recover(bus, clock)
        await send(bus, "in", "4")
        await quiet(bus)
        assert there(bus, "out") == list("01234")
        nothing_staged(disks)


@pytest.mark.promise("P9")
@stores
@run
async def test_many_messages_go_on_in_order(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("out")
        await bus.create_queue("in", forward_to="out")
        texts = [str(number) for number in range(1_000)]
        for start in range(0, 1_000, 250):
            await bus.send_batch("in", [msg(text) for text in texts[start : start + 250]])
        await quiet(bus)
        found = peek_everything(bus, "out")
        assert bodies(found) == texts
        assert numbers(found) == list(range(1, 1_001))


@pytest.mark.promise("P9", "B6")
@run
async def test_a_source_that_was_deleted_and_made_again_while_messages_were_on_their_way(
    clock: ManualClock,
) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_topic("t")
        await bus.create_queue("filler")
        await bus.create_queue("out")
        name = await bus.create_subscription("t", "s", forward_to="out")
        await send(bus, "t", *"0123")
        await bus.delete_subscription(name)
        await bus.create_subscription("t", "s", forward_to="out")
        await send(bus, "t", "4")
        await recover(bus, clock)
        assert there(bus, "out")[-1] == "4"
        assert len(set(there(bus, "out"))) == len(there(bus, "out"))
        nothing_staged(disks)
        sound(bus)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("kept", [True, False])
@run
async def test_nothing_overtakes_what_is_in_doubt(clock: ManualClock, kept: bool) -> None:
    disks = FragileDisks()
    async with disks.bus(clock, "a", "b") as bus:
        await bus.create_queue("out", enable_partitioning=True)
        await bus.create_queue("in", forward_to="out")
        home = bus.broker.find("in").stores[0]
        near = KEYS[index_in(bus, "out", home)]
        far = KEYS[index_in(bus, "out", "b" if home == "a" else "a")]
        # Only the store that gets the larger one knows whether it is forwarded, and stays down.
        other = "b" if home == "a" else "a"
        disks.fail(other, 0, kept=kept)
        disks.broken.add(other)
        await bus.send_batch("in", [msg("0", partition_key=near), msg("1" * 99, partition_key=far)])
        await quiet(bus)
        # This one could go on within one store.
        await send(bus, "in", "2", partition_key=near)
        await recover(bus, clock)
        assert there(bus, "out") == []
        disks.broken.clear()
        await recover(bus, clock)
        found = peek_everything(bus, "out")
        assert bodies([m for m in found if m.message.partition_key == near]) == ["0", "2"]
        assert len(found) == 3
        nothing_staged(disks)


async def sources(bus: Bus) -> Any:
    """Make a queue, a topic and a partitioned queue that will forward, with messages in them."""
    await bus.create_queue("out", requires_duplicate_detection=False)
    await bus.create_queue("morgue")
    await bus.create_queue("in", forward_dead_letters_to=None)
    await bus.create_queue("parted", enable_partitioning=True)
    await bus.send_batch("in", [msg(f"in-{n}", partition_key=KEYS[n]) for n in range(6)])
    for message in await get(bus, "in", 2):
        await bus.receiver("in").dead_letter(message, reason="bad")


async def forward_all(bus: Bus, _: Any) -> None:
    await bus.change_queue("parted", forward_to="out")
    await bus.change_queue("in", forward_to="parted", forward_dead_letters_to="morgue")


async def all_arrived(bus: Bus, made: Any) -> bool:
    """Once forwarding is on it goes on by itself, so all of it arrives in the end."""
    changed = bus.queue("in").settings.forward_to is not None
    await forward_all(bus, made)
    await quiet(bus)
    assert sorted(there(bus, "out")) == [f"in-{n}" for n in range(2, 6)]
    assert there(bus, "morgue") == ["in-0", "in-1"]
    assert numbers(peek_everything(bus, "out")) == [1, 2, 3, 4]
    assert numbers(peek_everything(bus, "morgue")) == [1, 2]
    for name in ("in", "parted"):
        assert there(bus, name) == []
        assert dead(bus, name) == []
    return changed


@pytest.mark.promise("P9", "B6", "S3")
@stores
@run
async def test_a_crash_never_forwards_twice(clock: ManualClock, stores: tuple[str, ...]) -> None:
    commits = await crash_everywhere(clock, sources, forward_all, all_arrived, stores)
    assert commits > 3 * len(stores)


@pytest.mark.promise("P9", "B6", "S3")
@run
async def test_a_store_that_fails_never_lets_a_message_be_forwarded_twice(
    clock: ManualClock,
) -> None:
    await fail_everywhere(clock, sources, forward_all, all_arrived)


@run
async def test_a_crash_does_not_delay_what_is_moved(clock: ManualClock) -> None:
    disks = FragileDisks()
    bus = await disks.bus(clock, "a", "b")
    await bus.create_queue("out", enable_partitioning=True, delivery_delay_ms=MINUTE)
    await bus.create_queue("in")
    sent = [await bus.send("in", msg(key, partition_key=key)) for key in KEYS]
    await quiet(bus)
    # It is staged and decided. Half of the messages are published after the restart.
    disks.cut_power(2)
    with pytest.raises(Unknown):
        await bus.move("in", "out", [one.sequence_number for one in sent])
    crash(bus)
    disks.mend()
    bus = await disks.bus(clock, "a", "b")
    await quiet(bus)
    assert states(bus, "out") == [(key, "active") for key in KEYS]
    nothing_staged(disks)
    await bus.close()
