"""FIFO queues (F): deduplication ids and content, attempts, groups."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus
from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.gateway.receiving import receive_fifo
from tests.bus_helpers import (
    MINUTE,
    SECOND,
    ManualClock,
    bodies,
    msg,
    numbers,
    pass_ms,
    peek_everything,
    run,
)

INTERVAL = 5 * MINUTE
VISIBILITY = MINUTE


async def fifo(bus: Bus, **settings: Any) -> None:
    await bus.create_queue("q", fifo=True, **settings)


async def put(bus: Bus, body: str, dedup: str | None = None, group: str = "g") -> bool:
    """Send to the queue; tell whether it was stored."""
    sent = await bus.send("q", msg(body, message_id=dedup, session_id=group))
    return sent.duplicate_of is None


def remembered(bus: Bus) -> list[str]:
    """Return the attempts that a queue remembers."""
    entity = bus.broker.find("q")
    return [
        one
        for partition in entity.partitions
        for one in partition.online().subscriptions[entity.number].attempts
    ]


async def fill(bus: Bus, **groups: str) -> None:
    """Send the letters given for each group, in turn: one of each, then the second of each."""
    for at in range(max(len(letters) for letters in groups.values())):
        for group, letters in groups.items():
            if at < len(letters):
                await put(bus, letters[at], f"{group}{letters[at]}", group)


@pytest.mark.promise("F1")
@run
async def test_a_second_message_of_one_id_is_answered_with_the_first(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus)
        first = await bus.send("q", msg("one", message_id="a", session_id="g"))
        clock.advance(INTERVAL - 1)
        second = await bus.send("q", msg("two", message_id="a", session_id="h"))
        assert second.sequence_number == second.duplicate_of == first.sequence_number
        assert bodies(await bus.fifo_receiver("q").receive(10)) == ["one"]


@pytest.mark.promise("F1")
@run
async def test_the_memory_survives_receive_delete_purge_and_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fifo(bus)
        assert await put(bus, "1", "a")
        receiver = bus.fifo_receiver("q")
        await receiver.complete(*await receiver.receive())
        assert await put(bus, "2", "b")
        assert await bus.purge("q") == 1
        assert not await put(bus, "3", "a")
        assert not await put(bus, "3", "b")
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert not await put(bus, "4", "a")
        assert not await put(bus, "4", "b")
        assert await bus.purge("q", forget_ids=True) == 0
        assert await put(bus, "5", "a")
        assert bodies(await bus.fifo_receiver("q").receive(10)) == ["5"]


@pytest.mark.promise("F1")
@run
async def test_the_scope_is_the_queue_or_the_group(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, deduplication_scope="messageGroup")
        assert await put(bus, "1", "a", "g")
        assert await put(bus, "2", "a", "h")
        assert not await put(bus, "3", "a", "g")
        with pytest.raises(InvalidArgument):
            await bus.create_queue("no", fifo=True, deduplication_scope="other")


@pytest.mark.promise("F2")
@run
async def test_without_an_id_and_without_content_rule_the_sender_gets_an_error(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus)
        with pytest.raises(InvalidOperation):
            await put(bus, "x")
        assert bus.queue("q").active_count == 0


@pytest.mark.promise("F3")
@run
async def test_the_receiver_sees_id_group_and_number(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus)
        sent = await bus.send("q", msg("x", message_id="dedup", session_id="group"))
        (message,) = await bus.fifo_receiver("q").receive()
        assert (message.message_id, message.session_id) == ("dedup", "group")
        assert message.sequence_number == sent.sequence_number == 1


@pytest.mark.promise("F4", "F6")
@run
async def test_content_gives_the_id_and_equal_bodies_are_duplicates(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, content_based_deduplication=True)
        for at, body in enumerate((b"same", b"same", b"other")):
            await bus.send("q", msg(body.decode(), session_id="g", properties={"at": at}))
        received = await bus.fifo_receiver("q").receive(10)
        assert bodies(received) == ["same", "other"], "attributes do not count"
        assert [m.message_id for m in received] == [
            sha256(b"same").hexdigest(),
            sha256(b"other").hexdigest(),
        ]
        assert bus.queue("q").duplicates_dropped == 1


@pytest.mark.promise("F5")
@run
async def test_an_explicit_id_wins_and_shares_its_names_with_hashes(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, content_based_deduplication=True)
        assert await put(bus, "x", "mine")
        assert await put(bus, "x"), "its id is its hash, and that is new"
        assert not await put(bus, "other", sha256(b"x").hexdigest())
        assert not await put(bus, "other", "mine")
        assert await put(bus, "y", sha256(b"z").hexdigest())
        assert not await put(bus, "z")


@pytest.mark.promise("F7")
@run
async def test_equal_content_under_another_id_is_new_as_in_the_services(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, content_based_deduplication=True)
        assert await put(bus, "x", "one")
        assert await put(bus, "x", "two")


@pytest.mark.promise("F7")
@run
async def test_the_documents_rule_can_be_turned_on(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, content_based_deduplication=True, content_matches_any_id=True)
        assert await put(bus, "x")
        assert not await put(bus, "x", "one"), "the same content under another id"
        assert await put(bus, "y", "two")
        assert not await put(bus, "y", "three")
        assert not await put(bus, "y")
        assert not await put(bus, "z", "two"), "and the id matches as well"
        with pytest.raises(InvalidArgument):
            await bus.create_queue("no", fifo=True, content_matches_any_id=True)


@pytest.mark.promise("F8")
@run
async def test_after_the_interval_the_same_id_is_a_new_message(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus)
        assert await put(bus, "1", "a")
        clock.advance(INTERVAL - 1)
        assert not await put(bus, "2", "a")
        clock.advance(1)
        assert await put(bus, "3", "a")
        assert bodies(await bus.fifo_receiver("q").receive(10)) == ["1", "3"]


@pytest.mark.promise("F9")
@run
async def test_an_attempt_asked_again_returns_the_same(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, lock_duration_ms=VISIBILITY)
        await fill(bus, a="123", b="45")
        receiver = bus.fifo_receiver("q")
        first = await receiver.receive(4, attempt_id="try")
        clock.advance(VISIBILITY - 1)
        again = await bus.fifo_receiver("q").receive(4, attempt_id="try")
        assert numbers(again) == numbers(first)
        assert len(first) == 4
        assert [m.token for m in again] == [m.token for m in first]
        assert [m.delivery_count for m in again] == [0] * 4, "it is not another receive"
        await pass_ms(bus, clock, VISIBILITY - 1)
        assert bus.queue("q").held_count == 4, "visibility was restarted"
        await receiver.complete(*first)


@pytest.mark.promise("F9")
@run
async def test_a_generated_attempt_id_is_told_and_works(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus)
        await put(bus, "x", "a")
        receiver = bus.fifo_receiver("q")
        first = await receiver.receive()
        again = await receiver.receive(attempt_id=receiver.attempt_id)
        assert receiver.attempt_id
        assert [m.token for m in again] == [m.token for m in first]


@pytest.mark.promise("F9")
@pytest.mark.parametrize("change", ["delete", "visibility", "abandon"])
@run
async def test_once_its_messages_changed_an_attempt_is_an_ordinary_receive(
    clock: ManualClock, change: str
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus)
        await fill(bus, a="1", b="2", c="3")
        receiver = bus.fifo_receiver("q")
        first = await receiver.receive(2, attempt_id="try")
        assert bodies(first) == ["1", "2"]
        if change == "delete":
            await receiver.complete(first[0])
        elif change == "visibility":
            await receiver.change_visibility(first[0], 2 * VISIBILITY)
        else:
            await receiver.abandon(first[0])
        # A group that is visible again queues up behind others (F10).
        expected = ["3", "1"] if change == "abandon" else ["3"]
        assert bodies(await receiver.receive(2, attempt_id="try")) == expected


@pytest.mark.promise("F9")
@run
async def test_a_changed_attempt_stays_changed_over_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fifo(bus)
        await fill(bus, a="1", b="2", c="3")
        for name in ("kept", "changed"):
            (message,) = await bus.fifo_receiver("q").receive(attempt_id=name)
        await bus.fifo_receiver("q").change_visibility(message, 3 * VISIBILITY)
    async with Bus.open(tmp_path, clock=clock) as bus:
        receiver = bus.fifo_receiver("q")
        assert bodies(await receiver.receive(attempt_id="kept")) == ["1"]
        assert bodies(await receiver.receive(attempt_id="changed")) == ["3"]


@pytest.mark.promise("F9")
@run
async def test_after_its_visibility_or_five_minutes_an_attempt_is_an_ordinary_receive(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, lock_duration_ms=VISIBILITY)
        await fill(bus, a="1")
        receiver = bus.fifo_receiver("q")
        (first,) = await receiver.receive(attempt_id="try")
        await pass_ms(bus, clock, VISIBILITY)
        (second,) = await receiver.receive(attempt_id="try", visibility_ms=2 * INTERVAL)
        assert second.token != first.token
        assert second.delivery_count == 1
        await pass_ms(bus, clock, INTERVAL)
        assert await receiver.receive(attempt_id="try") == [], "it is still in flight"


@pytest.mark.promise("F9")
@run
async def test_a_receive_whose_message_is_gone_is_not_remembered(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fifo(bus)
        await fill(bus, a="1", b="2", c="3", d="4")
        receiver = bus.fifo_receiver("q")
        first, second = await receiver.receive(2, attempt_id="try")
        await receiver.complete(first)
        assert remembered(bus) == []
        (third,) = await receiver.receive(1, attempt_id="try")
        # It was given out by the first receive of that id, and the id is the second's by now.
        await receiver.complete(second)
        assert remembered(bus) == ["try"]
        assert (await receiver.receive(1, attempt_id="try"))[0].token == third.token
        (fourth,) = await receiver.receive(1, attempt_id="done")
        await receiver.complete(fourth)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert remembered(bus) == ["try"], "nor after a restart"
        again = await bus.fifo_receiver("q").receive(1, attempt_id="try")
        assert bodies(again) == ["3"]


@pytest.mark.promise("F9")
@run
async def test_an_attempt_is_repeated_also_where_no_more_may_be_in_flight(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus)
        await fill(bus, a="12", b="3")

        async def receive(attempt_id: str) -> list[Any]:
            found: list[Any] = await bus.ask(
                lambda reply: receive_fifo(
                    bus.broker, "q", 2, 0, reply, attempt_id=attempt_id, held_max=2
                )
            )
            return found

        first = await receive("try")
        assert len(first) == 2
        assert await receive("another") == [], "as many are in flight as may be"
        again = await receive("try")
        assert [one.token for one in again] == [one.token for one in first]


@pytest.mark.promise("F9")
@run
async def test_an_option_makes_a_changed_attempt_an_error(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, strict_attempts=True)
        await fill(bus, a="1", b="2")
        receiver = bus.fifo_receiver("q")
        (first,) = await receiver.receive(attempt_id="try")
        await receiver.complete(first)
        with pytest.raises(InvalidOperation):
            await receiver.receive(attempt_id="try")
        assert bodies(await receiver.receive(attempt_id="another")) == ["2"]


@pytest.mark.promise("F10")
@run
async def test_a_group_with_a_message_in_flight_gives_out_no_more(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, lock_duration_ms=VISIBILITY)
        await fill(bus, a="123", b="4")
        receiver = bus.fifo_receiver("q")
        (first,) = await receiver.receive(1)
        assert bodies([first]) == ["1"]
        (other,) = await receiver.receive(10)
        assert bodies([other]) == ["4"], "the other group is free"
        await receiver.complete(first)
        assert bodies(await receiver.receive(1)) == ["2"]
        await pass_ms(bus, clock, VISIBILITY)
        assert bodies(await receiver.receive(10)) == ["4", "2", "3"], "visible again, in order"


@pytest.mark.promise("F10")
@run
async def test_one_receive_returns_several_of_one_group_in_order(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus)
        await fill(bus, a="123", b="456")
        receiver = bus.fifo_receiver("q")
        received = await receiver.receive(5)
        assert bodies(received) == ["1", "2", "3", "4", "5"]
        await receiver.complete(*received[:2])
        assert await receiver.receive(5) == [], "3 and 4 are still in flight"
        await receiver.change_visibility(received[2], 0)
        assert bodies(await receiver.receive(5)) == ["3"]


@pytest.mark.promise("F10")
@run
async def test_a_switch_gives_one_message_of_a_group_at_a_time(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await fifo(bus, one_message_per_group=True)
        await fill(bus, a="12", b="34")
        receiver = bus.fifo_receiver("q")
        received = await receiver.receive(10)
        assert bodies(received) == ["1", "3"]
        await receiver.complete(*received)
        assert bodies(await receiver.receive(10)) == ["2", "4"]


@pytest.mark.promise("F10")
@run
async def test_groups_in_flight_survive_a_clean_restart(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await fifo(bus, lock_duration_ms=VISIBILITY)
        await fill(bus, a="12", b="34")
        (held,) = await bus.fifo_receiver("q").receive(1)
    clock.advance(SECOND)
    async with Bus.open(tmp_path, clock=clock) as bus:
        receiver = bus.fifo_receiver("q")
        assert bodies(await receiver.receive(10)) == ["3", "4"]
        await receiver.complete(held)
        assert bodies(await receiver.receive(10)) == ["2"]


@pytest.mark.promise("F10", "L2")
@run
async def test_a_fifo_queue_as_a_session_and_by_number(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("f", fifo=True)
        await bus.send("f", msg("1", session_id="g", message_id="1"))
        async with await bus.accept_session("f", "g") as session:
            (held,) = await session.receive()
            with pytest.raises(InvalidOperation):
                await session.renew(held)
            await session.defer(held)
        fifo = bus.fifo_receiver("f")
        assert await fifo.receive() == []
        (deferred,) = await fifo.receive_deferred([held.sequence_number])
        await fifo.complete(deferred)
        assert peek_everything(bus, "f") == []
