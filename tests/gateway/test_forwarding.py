"""Forwarding: messages and dead letters that go on to another entity by themselves (B6, P9)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from onibus import Bus
from onibus.core.errors import EntityNotFound, InvalidArgument, InvalidOperation
from onibus.core.inspection import Filter
from onibus.core.message import encode
from onibus.core.numbering import partition_index
from onibus.core.runs import Runs
from tests.bus_helpers import (
    KEYS,
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    pass_ms,
    peek_everything,
    picture,
    run,
    send,
)
from tests.gateway.fragile import (
    quiet,
    recover,
)
from tests.gateway.topic_helpers import dead, sound, sql, there, topic_with

stores = pytest.mark.parametrize("stores", [("a",), ("a", "b")])


async def chain(bus: Bus, *names: str, **settings: Any) -> None:
    """Make queues of which each forwards to the next."""
    target: str | None = None
    for name in reversed(names):
        await bus.create_queue(name, forward_to=target, **settings)
        target = name


@pytest.mark.promise("B6", "S2")
@stores
@run
async def test_four_hops_and_the_fifth_is_a_dead_letter(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await chain(bus, "h0", "h1", "h2", "h3", "h4", "h5")
        await send(bus, "h5", "was there before")
        await send(bus, "h1", "from h1")
        await send(bus, "h0", "from h0")
        await quiet(bus)
        assert there(bus, "h5") == ["was there before", "from h1"]
        assert dead(bus, "h4") == [("from h0", "MaxTransferHopCountExceeded")]
        for name in ("h0", "h1", "h2", "h3", "h4"):
            assert peek_everything(bus, name) == []
        _, forwarded = peek_everything(bus, "h5")
        (letter,) = peek_everything(bus, "h4", dead_letters=True)
        # A new number at each destination, and the first one is kept.
        assert (forwarded.sequence_number, letter.sequence_number) == (2, 2)
        assert forwarded.message.enqueued_sequence_number == 1
        assert letter.message.enqueued_sequence_number == 1
        assert (forwarded.message.hop_count, letter.message.hop_count) == (4, 4)
        sound(bus)


@pytest.mark.promise("S2")
@run
async def test_the_first_number_is_kept(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await chain(bus, "h1", "h2")
        await bus.create_queue("h0")
        await send(bus, "h0", "0", "1", "2")
        await send(bus, "h2", "0", "1")
        await bus.change_queue("h0", forward_to="h1")
        await quiet(bus)
        found = peek_everything(bus, "h2")[2:]
        assert bodies(found) == ["0", "1", "2"]
        assert numbers(found) == [3, 4, 5]
        assert [m.message.enqueued_sequence_number for m in found] == [1, 2, 3]


@pytest.mark.promise("B6")
@run
async def test_what_forwarding_cannot_be(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("plain")
        await chain(bus, "a", "b", "c")
        left, _ = await topic_with(bus, "left", "right")
        await bus.change_subscription(left, forward_to="a")
        await bus.create_queue("to-topic", forward_to="T")
        before = {name: picture(bus, name) for name in bus.queues()}
        circles = [
            ("plain", "plain"), ("c", "a"), ("c", "C"), ("b", "A"), ("c", "t"), ("c", "to-topic")
        ]  # fmt: skip
        for setting in ("forward_to", "forward_dead_letters_to"):
            for name, target in circles:
                with pytest.raises(InvalidOperation):
                    await bus.change_queue(name, **{setting: target})
            for target in ("t", "to-topic"):
                given: Any = {setting: target}
                # Through its own topic, whether the subscription is there already or not.
                with pytest.raises(InvalidOperation):
                    await bus.change_subscription(left, **given)
                with pytest.raises(InvalidOperation):
                    await bus.create_subscription("t", "new", **given)
            with pytest.raises(InvalidOperation):
                await bus.create_queue("new", **{setting: "new"})
            with pytest.raises(InvalidOperation):
                await bus.create_queue("new", **{setting: left})
            with pytest.raises(EntityNotFound):
                await bus.create_queue("new", **{setting: "nowhere"})
            with pytest.raises(InvalidArgument):
                await bus.create_queue("new", **{setting: "//"})
        with pytest.raises(InvalidArgument):
            await bus.create_queue("new", requires_session=True, forward_to="plain")
        with pytest.raises(InvalidArgument):
            await bus.create_topic("new", forward_to="plain")
        assert {name: picture(bus, name) for name in bus.queues()} == before
        assert bus.topic("t").subscriptions == ("t/subscriptions/left", "t/subscriptions/right")
        # No circle: two ways to one place.
        await bus.change_queue("plain", forward_to="a", forward_dead_letters_to="b")


@pytest.mark.promise("B6")
@run
async def test_changes_that_are_made_at_once_close_no_circle(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        for name in ("a", "b", "c", "d"):
            await bus.create_queue(name)
        await bus.create_topic("t")

        async def at_once(*changes: Any) -> list[bool]:
            found = await asyncio.gather(*changes, return_exceptions=True)
            refused = [one for one in found if isinstance(one, BaseException)]
            assert all(isinstance(one, InvalidOperation) for one in refused), refused
            return [one not in refused for one in found]

        assert await at_once(
            bus.change_queue("a", forward_to="B"),
            bus.change_queue("b", forward_dead_letters_to="c"),
            bus.change_queue("c", forward_to="a"),
            bus.change_queue("d", forward_to="a"),
        ) == [True, True, False, True]
        assert await at_once(
            bus.create_subscription("t", "s", forward_to="d"), bus.change_queue("b", forward_to="t")
        ) == [True, False]
        assert await at_once(
            bus.change_queue("a", forward_to=None), bus.change_queue("b", forward_to="a")
        ) == [True, False], "the first may still come to nothing"
        await bus.change_queue("b", forward_to="a")


@pytest.mark.promise("B6")
@run
async def test_a_forwarding_queue_gives_nothing_out_but_its_dead_letters(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await chain(bus, "a", "b", requires_duplicate_detection=True)
        with pytest.raises(InvalidOperation):
            await get(bus, "a")
        assert await get(bus, "a", dead_letters=True) == []
        # What somebody held when forwarding began goes on when it is given back.
        await send(bus, "b", "held", "other")
        held = await get_one(bus, "b")
        await bus.create_queue("c")
        await bus.change_queue("b", forward_to="c")
        await quiet(bus)
        assert there(bus, "c") == ["other"]
        await bus.receiver("b").abandon(held)
        await quiet(bus)
        assert there(bus, "c") == ["other", "held"]


@pytest.mark.promise("P9", "D10")
@stores
@run
async def test_a_destination_that_detects_duplicates(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("out", requires_duplicate_detection=True)
        await bus.create_queue("in", forward_to="out")
        await send(bus, "out", "first", message_id="1")
        for message_id in ("1", "2", "2", "3"):
            await send(bus, "in", f"forwarded {message_id}", message_id=message_id)
        await quiet(bus)
        assert there(bus, "out") == ["first", "forwarded 2", "forwarded 3"]
        assert there(bus, "in") == []
        assert bus.queue("out").duplicates_dropped == 2


@pytest.mark.promise("P9", "P4")
@stores
@run
async def test_from_to_and_between_partitioned_entities(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("end")
        await bus.create_queue("p2", enable_partitioning=True)
        await bus.create_queue("p1", enable_partitioning=True, forward_to="p2")
        await bus.create_queue("start", forward_to="p1")
        for turn in range(3):
            await bus.send_batch("start", [msg(f"{key}/{turn}", partition_key=key) for key in KEYS])
        await send(bus, "start", "keyless")
        await quiet(bus)
        found = [m for m in peek_everything(bus, "p2") if m.body != b"keyless"]
        assert len(found) == 48
        for message in found:
            key, place = message.body.decode().split("/")
            assert KEYS[partition_index(message.sequence_number, True)] == key
            # The keyless one may have come before it.
            assert message.sequence_number & 0xFF in (int(place) + 1, int(place) + 2)
        assert bodies([m for m in found if m.message.partition_key == KEYS[7]]) == [
            f"{KEYS[7]}/{turn}" for turn in range(3)
        ]
        await bus.change_queue("p2", forward_to="end")
        await quiet(bus)
        assert len(there(bus, "end")) == 49
        assert [text for text in there(bus, "end") if text.startswith(KEYS[7] + "/")] == [
            f"{KEYS[7]}/{turn}" for turn in range(3)
        ]
        sound(bus)


@pytest.mark.promise("P9", "B4")
@stores
@run
async def test_sessions_at_the_destination(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("s", requires_session=True, enable_partitioning=True)
        await bus.create_queue("in", forward_to="s")
        await bus.send_batch("in", [msg(f"x{n}", session_id="x") for n in range(3)])
        await send(bus, "in", "no session")
        await send(bus, "in", "y0", session_id="y")
        await quiet(bus)
        assert bodies(await (await bus.accept_session("s", "x")).receive(5)) == ["x0", "x1", "x2"]
        assert bodies(await (await bus.accept_session("s", "y")).receive(5)) == ["y0"]
        # What the destination never takes is a dead letter of the source, which says why.
        assert dead(bus, "in") == [("no session", "invalid-operation")]
        (letter,) = peek_everything(bus, "in", dead_letters=True)
        assert "session_id" in (letter.dead_letter_description or "")
        sound(bus)


@pytest.mark.promise("B6")
@run
async def test_a_message_that_is_too_large_for_its_destination(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("out", max_message_bytes=100)
        await bus.create_queue("in", forward_to="out")
        await send(bus, "in", "small", "x" * 200, "last")
        await quiet(bus)
        assert there(bus, "out") == ["small", "last"]
        assert dead(bus, "in") == [("x" * 200, "message-too-large")]


@pytest.mark.promise("B6")
@run
async def test_a_message_of_the_largest_size_goes_all_the_way(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await chain(bus, "h0", "h1", "h2", max_message_bytes=200)
        await bus.create_queue("morgue", max_message_bytes=200)
        await bus.change_queue("h2", forward_dead_letters_to="morgue")
        largest = next(
            text
            for text in ("x" * size for size in range(200, 0, -1))
            if len(encode(msg(text))) <= 200
        )
        await send(bus, "h0", largest)
        await quiet(bus)
        await bus.receiver("h2").dead_letter(await get_one(bus, "h2"), reason="r" * 100)
        await quiet(bus)
        assert there(bus, "morgue") == [largest]


@pytest.mark.promise("B6")
@stores
@run
async def test_dead_letters_go_on_with_their_reasons(
    clock: ManualClock, stores: tuple[str, ...]
) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("morgue")
        await bus.create_queue(
            "in",
            forward_dead_letters_to="morgue",
            dead_letter_on_expiration=True,
            max_delivery_count=1,
        )
        await send(bus, "in", "bad", properties={"n": 1}, message_id="m")
        await send(bus, "in", "abandoned")
        await send(bus, "in", "old", time_to_live_ms=SECOND)
        await bus.create_queue("sessions", requires_session=True, forward_dead_letters_to="morgue")
        await send(bus, "sessions", "of a session", session_id="x")
        bad, abandoned, _ = await get(bus, "in")
        await bus.receiver("in").dead_letter(bad, reason="r", description="d")
        await quiet(bus)
        await bus.receiver("in").abandon(abandoned)
        await pass_ms(bus, clock, 2 * MINUTE)
        await quiet(bus)
        async with await bus.accept_session("sessions", "x") as session:
            await session.dead_letter((await session.receive())[0])
        await quiet(bus)
        found = peek_everything(bus, "morgue")
        assert bodies(found) == ["bad", "abandoned", "old", "of a session"]
        assert [m.properties.get("DeadLetterReason") for m in found] == [
            "r", "MaxDeliveryCountExceeded", "MaxDeliveryCountExceeded", None
        ]  # fmt: skip
        assert found[0].properties["DeadLetterErrorDescription"] == "d"
        assert found[0].properties["n"] == 1
        assert found[0].message.enqueued_sequence_number == 1
        # Dead letters do not expire, nor does what they become.
        assert [m.message.time_to_live_ms for m in found] == [None] * 4
        assert dead(bus, "in") == dead(bus, "sessions") == []
        # They can be received and settled there like any message.
        assert bodies(await get(bus, "morgue", delete=True)) == bodies(found)
        sound(bus)


@pytest.mark.promise("B6")
@run
async def test_a_dead_letter_tells_where_it_first_became_one(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        for name, morgue in (("last", None), ("middle", "last"), ("first", "middle")):
            await bus.create_queue(name, forward_dead_letters_to=morgue)
        await bus.create_queue("in", forward_to="first")
        await bus.send("first", msg("other"))
        await send(bus, "in", "bad", properties={"DeadLetterSource": "x", "DeadLetterSourceId": 1})
        await quiet(bus)
        assert [m.message.dead_letter_of for m in peek_everything(bus, "first")] == [None, None]
        for name in ("first", "middle"):
            await bus.receiver(name).dead_letter((await get(bus, name))[-1])
            await quiet(bus)
    async with disks.bus(clock) as bus:
        (letter,) = peek_everything(bus, "last")
        assert letter.message.dead_letter_of == (bus.broker.find("first").incarnation, 2)
        assert letter.properties["DeadLetterSource"] == "middle"
        assert letter.message.enqueued_sequence_number == 1, "in the queue that it was sent to"


@pytest.mark.promise("B6")
@run
async def test_a_dead_letter_that_its_destination_never_takes_stays(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("strict", requires_session=True)
        await bus.create_queue("open")
        await bus.create_queue("in", forward_dead_letters_to="strict")
        await send(bus, "in", "no session", "x", "y")
        for message in await get(bus, "in", 2):
            await bus.receiver("in").dead_letter(message, reason="bad")
        await recover(bus, clock)
        assert dead(bus, "in") == [("no session", "bad"), ("x", "bad")]
        # Another destination gets them.
        await bus.change_queue("in", forward_dead_letters_to="open")
        await recover(bus, clock)
        assert (dead(bus, "in"), there(bus, "open")) == ([], ["no session", "x"])


@pytest.mark.promise("B6")
@run
async def test_dead_letters_that_stay_are_not_looked_at_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []
    ordinals = Runs.ordinals

    def counted(self: Runs, start: int = 0) -> Iterator[int]:
        for ordinal in ordinals(self, start):
            looked_at.append(ordinal)
            yield ordinal

    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("small", max_message_bytes=100)
        await bus.create_queue("in", forward_dead_letters_to="small")
        await send(bus, "in", "first", *["x" * 200] * 300)
        receiver = bus.receiver("in")
        first, *large = await receiver.receive(301)
        await asyncio.gather(*[receiver.dead_letter(one, reason="bad") for one in large])
        await recover(bus, clock)
        letters = bus.broker.find("in").partitions[0].online().subscription.dead_ready
        assert (letters.count, letters.onward.count) == (300, 0)
        monkeypatch.setattr(Runs, "ordinals", counted)
        await send(bus, "in", "last")
        await quiet(bus)
        assert looked_at == []
        # A new one goes on, though it comes before them; who receives and gives back changes
        # nothing; and what is gone leaves nothing behind.
        await receiver.dead_letter(first, reason="bad")
        morgue = bus.receiver("in", dead_letters=True)
        await asyncio.gather(*map(morgue.abandon, await morgue.receive(300)))
        await recover(bus, clock)
        assert (there(bus, "small"), letters.count, letters.onward.count) == (["first"], 300, 0)
        await bus.purge("in", Filter(state="dead-lettered"))
        assert (letters.count, letters.onward.count, letters._kept) == (0, 0, set())
        sound(bus)


@pytest.mark.promise("B6")
@run
async def test_dead_letters_that_came_too_far_stay(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("end")
        await chain(bus, "h0", "h1", "h2", "h3", "h4")
        await bus.change_queue("h4", forward_dead_letters_to="end")
        await send(bus, "h0", "far")
        await quiet(bus)
        await bus.receiver("h4").dead_letter(await get_one(bus, "h4"), reason="bad")
        await recover(bus, clock)
        assert (dead(bus, "h4"), there(bus, "end")) == ([("far", "bad")], [])


@pytest.mark.promise("B6", "B2")
@stores
@run
async def test_time_to_live(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        await bus.create_queue("out", status="send-disabled")
        await bus.create_queue("in", forward_to="out", dead_letter_on_expiration=True)
        await send(bus, "in", "short", time_to_live_ms=SECOND)
        await send(bus, "in", "long", time_to_live_ms=MINUTE)
        await pass_ms(bus, clock, 30 * SECOND)
        assert dead(bus, "in") == [("short", "TTLExpiredException")]
        await bus.change_queue("out", status="active")
        await recover(bus, clock)
        (arrived,) = peek_everything(bus, "out")
        assert arrived.body == b"long"
        assert arrived.expires_at_ms is not None
        await pass_ms(bus, clock, MINUTE)
        assert there(bus, "out") == []


@pytest.mark.promise("B6", "B3")
@stores
@run
async def test_topics_as_source_and_target(clock: ManualClock, stores: tuple[str, ...]) -> None:
    async with Disks().bus(clock, *stores) as bus:
        first, second = await topic_with(bus, "first", "second", topic="far")
        await bus.create_topic("near")
        forwarding = await bus.create_subscription(
            "near",
            "on",
            rules=[sql("marked", "colour = 'red'", "SET mark = 1")],
            forward_to="far",
        )
        plain = await bus.create_subscription("near", "plain")
        await bus.create_queue("in", forward_to="near")
        await bus.create_rule(second, sql("none", "mark = 2"))
        await bus.delete_rule(second, "$Default")
        for colour in ("red", "blue", "red"):
            await send(bus, "in", colour, properties={"colour": colour})
        await quiet(bus)
        assert there(bus, plain) == ["red", "blue", "red"]
        assert there(bus, first) == ["red", "red"]
        assert [m.properties["mark"] for m in peek_everything(bus, first)] == [1, 1]
        assert [m.message.hop_count for m in peek_everything(bus, first)] == [2, 2]
        assert there(bus, second) == there(bus, forwarding) == []
        with pytest.raises(InvalidOperation):
            await get(bus, forwarding)
        sound(bus)


@pytest.mark.promise("B6", "S5")
@run
async def test_scheduled_and_deferred_messages(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_queue("out")
        await bus.create_queue("in")
        await send(bus, "in", "deferred", "delayed")
        deferred, delayed = await get(bus, "in")
        await bus.receiver("in").defer(deferred)
        await bus.receiver("in").abandon(delayed, delay_ms=MINUTE)
        await bus.schedule("in", msg("scheduled"), clock.wall() + MINUTE)
        await bus.change_queue("in", forward_to="out")
        await quiet(bus)
        assert there(bus, "out") == []
        await pass_ms(bus, clock, MINUTE)
        await quiet(bus)
        assert there(bus, "out") == ["delayed", "scheduled"]
        assert [m.state for m in peek_everything(bus, "out")] == ["active", "active"]
        await bus.undefer("in", [1])
        await quiet(bus)
        assert there(bus, "out") == ["delayed", "scheduled", "deferred"]
