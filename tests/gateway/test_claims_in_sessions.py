"""Claims (R5, R7) on sessions, FIFO groups and subscriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.errors import InvalidOperation, SessionLocked
from onibus.core.message import decode_properties
from onibus.core.rules.rule import Rule, SqlAction
from tests.bus_helpers import ManualClock, bodies, crash, get, msg, numbers, run, send
from tests.gateway.claim_helpers import read, sound, take


async def fifo(bus: Bus, limit: int = 100) -> list[str]:
    return bodies(await bus.fifo_receiver("q").receive(limit))


@pytest.mark.promise("R7")
@pytest.mark.parametrize("restart", [False, True])
@run
async def test_a_claim_holds_the_sessions_it_takes_from(
    tmp_path: Path, clock: ManualClock, restart: bool
) -> None:
    bus = await Bus.open(tmp_path, clock=clock)
    await bus.create_queue("q", requires_session=True)
    for name in ("held", "a", "b"):
        await send(bus, "q", f"{name}1", f"{name}2", session_id=name)
    await bus.accept_session("q", "held", owner="somebody")
    number = await take(bus, 3)
    assert await read(bus, number) == ["a1", "a2", "b1"]
    if restart:
        await bus.close()
        bus = await Bus.open(tmp_path, clock=clock)
    for name in ("a", "b"):
        with pytest.raises(SessionLocked):
            await bus.accept_session("q", name)
    await send(bus, "q", "a3", session_id="a")
    assert await bus.claim("q", "other", 10) is None, "no session is free"
    sound(bus)
    assert await read(bus, number) == ["a1", "a2", "b1"]
    await bus.commit_claim("q", "r", number)
    assert bodies(await (await bus.accept_session("q", "a")).receive(9)) == ["a3"]
    assert bodies(await (await bus.accept_session("q")).receive(9)) == ["b2"]
    sound(bus)
    await bus.close()


@pytest.mark.promise("R7")
@run
async def test_a_released_session_begins_where_it_did(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True)
        await send(bus, "q", "1", "2", "3", session_id="s")
        number = await take(bus, 2)
        await bus.release_claim("q", "r", number)
        session = await bus.accept_session("q")
        received = await session.receive(9)
        assert bodies(received) == ["1", "2", "3"]
        assert [m.delivery_count for m in received] == [0, 0, 0]
        sound(bus)


@pytest.mark.promise("R7")
@run
async def test_bytes_bound_a_claim_inside_a_session(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_session=True)
        await send(bus, "q", *["x" * 1_000] * 3, session_id="s")
        number = await take(bus, max_bytes=2_500)
        assert len(await read(bus, number)) == 2
        sound(bus)
        await bus.commit_claim("q", "r", number)
        assert len(await read(bus, await take(bus))) == 1


@pytest.mark.promise("R7", "F10")
@pytest.mark.parametrize("restart", [False, True])
@run
async def test_a_claim_blocks_the_groups_of_a_fifo_queue(
    tmp_path: Path, clock: ManualClock, restart: bool
) -> None:
    bus = await Bus.open(tmp_path, clock=clock)
    await bus.create_queue("q", fifo=True)
    for group in ("a", "b", "c"):
        for n in (1, 2):
            await bus.send("q", msg(f"{group}{n}", session_id=group, message_id=f"{group}{n}"))
    assert await fifo(bus, 1) == ["a1"]
    number = await take(bus, 3)
    assert await read(bus, number) == ["b1", "b2", "c1"]
    if restart:
        await bus.close()
        bus = await Bus.open(tmp_path, clock=clock)
    assert await fifo(bus) == []
    last = (await bus.read_claim("q", "r", number))[-1].sequence_number
    await bus.commit_claim("q", "r", number, dead_letters={last: ("late", None)})
    assert await fifo(bus) == ["c2"]
    assert bodies(bus.peek("q", dead_letters=True)) == ["c1"]
    sound(bus)
    await bus.close()


@run
async def test_one_message_per_group_holds_for_claims(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", fifo=True, one_message_per_group=True)
        for group in ("a", "b"):
            for n in (1, 2):
                await bus.send("q", msg(f"{group}{n}", session_id=group, message_id=f"{group}{n}"))
        assert await read(bus, await take(bus)) == ["a1", "b1"]


# Subscriptions


@pytest.mark.promise("R5")
@run
async def test_a_subscription_is_claimed_as_its_rules_show_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_topic("t")
        action = SqlAction("SET seen = 'yes'; SET sys.Label = 'new'")
        changed = await bus.create_subscription("t", "changed", rules=[Rule("r", action=action)])
        plain = await bus.create_subscription("t", "plain")
        await send(bus, "t", "1", "2", subject="old", properties={"n": 1})
        for name in (changed, plain):
            assert (await bus.claim(name, "r", 10)) is not None
        with pytest.raises(InvalidOperation):
            await bus.claim("t", "r", 10)
        crash(bus)
    async with Bus.open(tmp_path, clock=clock) as bus:
        one, _ = await bus.read_claim(changed, "r", 1)
        assert (one.message.subject, one.properties) == (
            "new",
            {"n": 1, "seen": "yes", "RuleName": "r"},
        )
        (batch,) = await bus.read_claim_arrow(changed, "r", 1)
        row = batch.to_pylist()[0]
        assert row["subject"] == "new"
        assert decode_properties(row["properties"]) == {"n": 1, "seen": "yes", "RuleName": "r"}
        await bus.commit_claim(changed, "r", 1)
        (other, _) = await bus.read_claim(plain, "r", 1)
        assert (other.message.subject, other.properties) == ("old", {"n": 1})
        assert bus.claims(changed) == []
        assert [claim.reader for claim in bus.claims(plain)] == ["r"]
        sound(bus, "t")


@pytest.mark.promise("R5")
@run
async def test_a_claim_in_arrow(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", message_id="m", properties={"n": 1})
        await send(bus, "q", "2")
        first = (await get(bus, "q", 1))[0]
        await bus.receiver("q").abandon(first)
        number = await take(bus)
        messages = await bus.read_claim("q", "r", number)
        (batch,) = await bus.read_claim_arrow("q", "r", number)
        rows = batch.to_pylist()
        assert [row["sequence_number"] for row in rows] == numbers(messages)
        assert [row["enqueued_time_ms"] for row in rows] == [m.enqueued_time_ms for m in messages]
        assert [row["delivery_count"] for row in rows] == [1, 0]
        assert [(row["partition"], row["body"], row["message_id"]) for row in rows] == [
            (0, b"1", "m"),
            (0, b"2", None),
        ]
