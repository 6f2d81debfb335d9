"""What became of each message is a second log (R4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Filter, errors
from onibus.core.records import OUTCOMES
from onibus.core.rules.rule import Rule, SqlFilter
from onibus.shard import tidying
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    Disks,
    ManualClock,
    crash,
    get,
    get_one,
    keys_of,
    msg,
    pass_ms,
    run,
    send,
    settle,
)
from tests.log_helpers import consume, outcomes, tidy


async def whole(bus: Bus, queue: str, start: int = 1) -> list[dict[str, Any]]:
    """Return outcomes with everything that is told of them."""
    batches = [batch async for batch in bus.read_outcomes(queue, 0, start)]
    return [row for batch in batches for row in batch.to_pylist()]


async def live_a_little(bus: Bus, clock: ManualClock) -> None:
    """Let everything become of messages that can."""
    await send(bus, "q", "done", "taken", "bad", "poison", "kept")
    receiver = bus.receiver("q")
    await receiver.complete(await get_one(bus, "q"))
    await get(bus, "q", 1, delete=True)
    await receiver.dead_letter(await get_one(bus, "q"), reason="why", description="because")
    await receiver.abandon(await get_one(bus, "q"))
    dead = await get_one(bus, "q", dead_letters=True)
    await bus.receiver("q", dead_letters=True).complete(dead)
    number = await bus.schedule("q", msg("cancelled"), clock.wall() + HOUR)
    await bus.cancel_scheduled("q", [number])
    await bus.schedule("q", msg("activated"), clock.wall() + MINUTE)
    await send(bus, "q", "mortal", time_to_live_ms=1_000)
    await pass_ms(bus, clock, MINUTE)
    await bus.purge("q", Filter(body_contains=b"kept"))


EVERYTHING = [
    (1, 1, "completed"),
    (2, 2, "completed"),
    (3, 3, "dead-lettered"),
    (4, 4, "dead-lettered"),
    (5, 3, "completed"),
    (6, 6, "cancelled"),
    (7, 7, "activated"),
    (8, 8, "expired"),
    (9, 5, "purged"),
]


@pytest.mark.promise("R4")
@run
async def test_everything_that_can_become_of_a_message(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR, max_delivery_count=1)
        start = bus.broker.clock.now()
        await live_a_little(bus, clock)
        assert await outcomes(bus, "q") == EVERYTHING
        rows = await whole(bus, "q")
        assert (rows[2]["reason"], rows[2]["description"]) == ("why", "because")
        assert rows[3]["reason"] == "MaxDeliveryCountExceeded"
        assert {row["reason"] for row in rows if row["outcome"] != "dead-lettered"} == {None}
        assert [row["time_ms"] - start for row in rows] == [0] * 6 + [MINUTE] * 3
        assert await outcomes(bus, "q", 3, 5) == EVERYTHING[2:4]
        assert await outcomes(bus, "q", 10) == []
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert await outcomes(bus, "q") == EVERYTHING, "over a restart"
        await consume(bus, "q")
        assert (await outcomes(bus, "q", 10)) == [(10, 9, "completed")]


@pytest.mark.promise("R4")
@run
async def test_what_went_on_to_another_entity_was_forwarded(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("there")
        await bus.create_queue("q", retention_ms=HOUR)
        await send(bus, "q", "bad", "good")
        letter = await get_one(bus, "q")
        await bus.receiver("q").dead_letter(letter, reason="why")
        await bus.resubmit("q", [letter.sequence_number], to="there")
        await bus.change_queue("q", forward_to="there")
        await settle(bus)
        assert [message.body for message in bus.peek("there")] == [b"bad", b"good"]
        assert await outcomes(bus, "q") == [
            (1, 1, "dead-lettered"),
            (2, 1, "forwarded"),
            (3, 2, "forwarded"),
        ]


@pytest.mark.promise("R4")
@run
async def test_expired_messages_that_are_dead_lettered_say_so(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR, dead_letter_on_expiration=True)
        await send(bus, "q", "mortal", time_to_live_ms=1_000)
        await pass_ms(bus, clock, MINUTE)
        (row,) = await whole(bus, "q")
        assert (row["outcome"], row["reason"]) == ("dead-lettered", "TTLExpiredException")


@pytest.mark.promise("R4")
@run
async def test_each_subscription_has_outcomes_of_its_own(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_topic("t", retention_ms=HOUR)
        plain = await bus.create_subscription("t", "plain")
        rules = [Rule("broken", SqlFilter("1 / number > 0"))]
        broken = await bus.create_subscription("t", "broken", rules=rules)
        await send(bus, "t", "a", properties={"number": 0})
        await send(bus, "t", "b", properties={"number": 1})
        await consume(bus, plain)
        number = await bus.schedule("t", msg("later"), clock.wall() + HOUR)
        await bus.cancel_scheduled("t", [number])
        await settle(bus)
    async with disks.bus(clock) as bus:
        assert await outcomes(bus, plain) == [(1, 1, "completed"), (2, 2, "completed")]
        (row,) = await whole(bus, broken)
        assert (row["sequence_number"], row["reason"]) == (1, "FilterEvaluationException")
        assert await outcomes(bus, "t") == [(1, number, "cancelled")]
        await bus.delete_subscription(broken)
        await settle(bus)
        left = {key[1] for key in disks.open["main"].tables[OUTCOMES]}
        assert left == {0, bus.broker.find(plain).number}, "they go with their subscription"
        await bus.delete_topic("t")
        await settle(bus)
        assert disks.open["main"].tables[OUTCOMES] == {}


@pytest.mark.promise("R4")
@run
async def test_outcomes_go_with_the_retention_and_their_numbers_go_on(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await send(bus, "q", *"abc")
        for _ in range(3):
            await consume(bus, "q", 1)
            await pass_ms(bus, clock, 20 * MINUTE)
        await pass_ms(bus, clock, MINUTE)
        assert await outcomes(bus, "q", 2) == [(2, 2, "completed"), (3, 3, "completed")]
        with pytest.raises(errors.LogGap) as gap:
            await outcomes(bus, "q")
        assert (gap.value.first, gap.value.last) == (1, 1)
        positions = bus.log_positions("q", log="outcomes")
        assert (positions.earliest, positions.latest) == ((2,), (4,))
        await pass_ms(bus, clock, HOUR)
        assert bus.log_positions("q", log="outcomes").earliest == (4,), "all are gone"
        crash(bus)
    for _ in range(2):
        async with disks.bus(clock) as bus:
            tidy(bus)
            await settle(bus)
            assert bus.log_positions("q", log="outcomes").latest == (4,)
    async with disks.bus(clock) as bus:
        await send(bus, "q", "d")
        await consume(bus, "q")
        assert await outcomes(bus, "q", 4) == [(4, 4, "completed")], "no number is used twice"
        assert len(disks.open["main"].tables[OUTCOMES]) == 1, "and nothing is left of the rest"


@pytest.mark.promise("R4")
@run
async def test_without_retention_and_readers_nothing_is_written(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", *"abc")
        await consume(bus, "q")
        assert disks.open["main"].tables[OUTCOMES] == {}
        await bus.change_queue("q", retention_ms=HOUR)
        await send(bus, "q", "d")
        await consume(bus, "q")
        assert await outcomes(bus, "q") == [(1, 4, "completed")]
        await bus.change_queue("q", retention_ms=None)
        tidy(bus)
        assert bus.log_positions("q", log="outcomes").earliest == (2,)


@pytest.mark.promise("R4")
@run
async def test_what_is_lost_in_a_crash_takes_no_number(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    await bus.create_queue("q", retention_ms=HOUR, lock_duration_ms=MINUTE, max_delivery_count=1)
    await send(bus, "q", "a", "b")
    await consume(bus, "q", 1)
    await get_one(bus, "q")
    await settle(bus)
    clock.advance(MINUTE)
    bus.broker.advance(bus.broker.find("q").partitions[0], bus.broker.clock.now())
    assert bus.log_positions("q", log="outcomes").latest == (2,), "dead-lettered, not durable"
    with pytest.raises(errors.InvalidArgument):
        await outcomes(bus, "q", 3)
    crash(bus)
    async with disks.bus(clock) as bus:
        await settle(bus)
        assert await outcomes(bus, "q") == [(1, 1, "completed"), (2, 2, "dead-lettered")]


@pytest.mark.promise("R4")
@run
async def test_outcomes_of_partitions(clock: ManualClock) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR, enable_partitioning=True)
        await bus.send("q", msg("a", partition_key=keys_of(3)[0]))
        await bus.send("q", msg("b", partition_key=keys_of(9)[0]))
        await consume(bus, "q")
        assert await outcomes(bus, "q", partition=3) == [(1, (3 << 48) + 1, "completed")]
        assert await outcomes(bus, "q", partition=9) == [(1, (9 << 48) + 1, "completed")]
        assert await outcomes(bus, "q", partition=0) == []


@run
async def test_many_outcomes_in_many_commits(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await bus.send_batch("q", [msg("x")] * 3_000)
        for count in (500, *[1] * 1_500, 1_000):
            await get(bus, "q", count, delete=True)
        found = await outcomes(bus, "q")
        assert found == [(n, n, "completed") for n in range(1, 3_001)]
        assert await outcomes(bus, "q", 499, 503) == found[498:502]
        await bus.change_queue("q", retention_ms=None)
        await settle(bus)
        partition = bus.broker.find("q").partitions[0]
        assert tidying.tidy(partition), "a slice at a time"
        tidy(bus)
        assert bus.log_positions("q", log="outcomes").earliest == (3_001,)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"start": 0}, "the next is 2"),
        ({"start": 3}, "the next is 2"),
        ({"start": "1"}, "not the number of an outcome"),
        ({"start": 1, "end": 3}, "the next is 2"),
        ({"start": 2, "end": 1}, "2 is after 1"),
        ({"start": 1, "partition": 16}, "partitions 0 to 0"),
    ],
)
@run
async def test_outcomes_that_cannot_be_read(how: Any, words: str) -> None:
    async with Disks().bus(ManualClock()) as bus:
        await bus.create_queue("q", retention_ms=HOUR)
        await send(bus, "q", "a")
        await consume(bus, "q")
        with pytest.raises(errors.InvalidArgument, match=words):
            await outcomes(bus, "q", **how)
        with pytest.raises(errors.InvalidArgument, match="use messages or outcomes"):
            bus.log_positions("q", log="both")
