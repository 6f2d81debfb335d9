"""Topics and subscriptions (B3): one message for many, each of whom does with it what it likes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onibus import Bus, Filter, Rule
from onibus.core.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    LockLost,
    MessageNotFound,
    NoSession,
)
from tests.bus_helpers import (
    HOUR,
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
    run,
    send,
    settle,
)
from tests.gateway.topic_helpers import dead, sound, there, topic_with


@pytest.mark.promise("B3", "S2")
@run
async def test_every_subscription_gets_the_message_under_the_topics_number(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        a, b = await topic_with(bus, "a", "b")
        assert (a, b) == ("t/subscriptions/a", "t/subscriptions/b")
        sent = await send(bus, "t", "1", "2", "3")
        for name in (a, b):
            found = await get(bus, name)
            assert bodies(found) == ["1", "2", "3"]
            assert numbers(found) == [one.sequence_number for one in sent] == [1, 2, 3]
            assert {one.enqueued_time_ms for one in found} == {clock.wall()}
        sound(bus)


@pytest.mark.promise("B3")
@run
async def test_what_one_subscription_does_the_others_do_not_notice(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        a, b, c = await topic_with(bus, "a", "b", "c")
        await send(bus, "t", "1", "2", "3", "4", "5")
        receiver = bus.receiver(a)
        one, two, three, four, _ = await receiver.receive(5)
        await receiver.complete(one)
        await receiver.defer(two)
        await receiver.dead_letter(three, reason="no")
        await receiver.abandon(four, properties={"seen": True})
        assert await bus.purge(c) == 5
        assert there(bus, a) == ["2", "4", "5"]
        assert dead(bus, a) == [("3", "no")]
        assert [(m.state, m.delivery_count, m.properties) for m in bus.peek(b)] == [
            ("active", 0, {})
        ] * 5
        assert (there(bus, c), dead(bus, b), dead(bus, c)) == ([], [], [])
        info = bus.subscription(a)
        assert (info.active_count, info.deferred_count, info.dead_lettered_count) == (2, 1, 1)
        assert bus.subscription(b).active_count == 5
        sound(bus)
        (again,) = await receiver.receive_deferred([two.sequence_number])
        await receiver.complete(again)
        with pytest.raises(MessageNotFound):
            await bus.receiver(b).receive_deferred([two.sequence_number])
        (letter,) = await get(bus, a, dead_letters=True)
        await bus.receiver(a, dead_letters=True).complete(letter)
        assert await get(bus, b, dead_letters=True) == []
        assert bodies(await get(bus, b)) == ["1", "2", "3", "4", "5"]
        sound(bus)


@pytest.mark.promise("B3", "B1")
@run
async def test_a_token_is_good_for_its_subscription_only(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        a, b = await topic_with(bus, "a", "b")
        await send(bus, "t", "1")
        held = await get_one(bus, a)
        for name in (b, "t"):
            with pytest.raises(LockLost):
                await bus.receiver(name).complete(held)
        assert bus.subscription(b).active_count == 1
        await bus.receiver(a).complete(held)
        sound(bus)


@pytest.mark.promise("B3")
@run
async def test_a_subscription_gets_what_comes_after_it(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (early,) = await topic_with(bus, "early")
        await send(bus, "t", "1", "2")
        late = await bus.create_subscription("t", "late")
        await send(bus, "t", "3")
        assert there(bus, early) == ["1", "2", "3"]
        assert there(bus, late) == ["3"]
        assert bus.topic("t").subscriptions == (early, late)
        assert bus.subscription(late).active_count == 1
        sound(bus)


@pytest.mark.promise("B3", "S1")
@run
async def test_a_topic_without_subscriptions_takes_messages_and_keeps_none(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_topic("t")
        assert [one.sequence_number for one in await send(bus, "t", "1", "2")] == [1, 2]
        assert bus.topic("t").size_bytes == 0
        name = await bus.create_subscription("t", "s")
        await send(bus, "t", "3")
        assert numbers(await get(bus, name)) == [3]
        sound(bus)


@pytest.mark.promise("B3")
@run
async def test_a_body_is_stored_once_however_many_want_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    sizes = {}
    for count in (1, 20):
        place = tmp_path / str(count)
        async with Bus.open(place, clock=clock, reserve_bytes=0) as bus:
            names = await topic_with(bus, *(f"s{n}" for n in range(count)))
            await bus.send_batch("t", [msg("x" * 1_000) for _ in range(500)])
            assert all(bus.subscription(name).active_count == 500 for name in names)
            assert bus.topic("t").size_bytes == bus.subscription(names[0]).size_bytes
            sizes[count] = bus.topic("t").size_bytes
        files = [place / "main.sqlite", *place.glob("main.sqlite.blocks/*")]
        assert 500_000 < sum(file.stat().st_size for file in files) < 750_000
    assert sizes[1] == sizes[20]


@pytest.mark.promise("D6", "D1")
@run
async def test_duplicates_are_dropped_at_the_topic(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        a, b = await topic_with(bus, "a", "b", requires_duplicate_detection=True)
        first = await bus.send("t", msg("first", message_id="m"))
        await get(bus, a, delete=True)
        late = await bus.create_subscription("t", "late")
        again = await bus.send("t", msg("again", message_id="m"))
        assert again.duplicate_of == first.sequence_number
        assert (there(bus, a), there(bus, b), there(bus, late)) == ([], ["first"], [])
        assert bus.topic("t").duplicates_dropped == 1
        assert [one[0] for one in bus.duplicates("t")] == ["m"]
        await pass_ms(bus, clock, 10 * MINUTE)
        await bus.send("t", msg("later", message_id="m"))
        assert (there(bus, a), there(bus, late)) == (["later"], ["later"])
        sound(bus)


@pytest.mark.promise("S5", "S6", "S7")
@run
async def test_a_scheduled_message_waits_at_the_topic(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (early,) = await topic_with(bus, "early")
        due = clock.wall() + MINUTE
        number = await bus.schedule("t", msg("later"), due)
        gone = await bus.schedule("t", msg("cancelled"), due)
        assert bodies(bus.peek("t")) == ["later", "cancelled"]
        assert {one.state for one in bus.peek("t")} == {"scheduled"}
        assert (bus.topic("t").scheduled_count, there(bus, early)) == (2, [])
        with pytest.raises(MessageNotFound):
            await bus.cancel_scheduled(early, [gone])
        await bus.cancel_scheduled("t", [gone])
        with pytest.raises(MessageNotFound):
            await bus.cancel_scheduled("t", [gone])
        late = await bus.create_subscription("t", "late")
        await pass_ms(bus, clock, MINUTE)
        for name in (early, late):
            (found,) = await get(bus, name)
            assert (found.body, found.sequence_number) == (b"later", 3)
            assert found.enqueued_time_ms == due
        assert bus.peek("t") == []
        with pytest.raises(MessageNotFound):
            await bus.cancel_scheduled("t", [number])
        sound(bus)


@pytest.mark.promise("S5", "X2")
@run
async def test_a_topics_scheduled_messages_can_be_purged(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (name,) = await topic_with(bus, "s")
        for text in ("1", "2"):
            await bus.schedule("t", msg(text), clock.wall() + MINUTE)
        await send(bus, "t", "now")
        assert await bus.purge("t", Filter(body_contains=b"1")) == 1
        await pass_ms(bus, clock, MINUTE)
        assert there(bus, name) == ["now", "2"]
        sound(bus)


@pytest.mark.promise("B2")
@run
async def test_each_subscription_has_its_own_time_to_live(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_topic("t", default_time_to_live_ms=HOUR)
        quick = await bus.create_subscription(
            "t", "quick", default_time_to_live_ms=MINUTE, dead_letter_on_expiration=True
        )
        brief = await bus.create_subscription("t", "brief", default_time_to_live_ms=2 * MINUTE)
        slow = await bus.create_subscription("t", "slow", default_time_to_live_ms=9 * HOUR)
        await send(bus, "t", "own", time_to_live_ms=SECOND)
        await send(bus, "t", "1", "2")
        start = clock.wall()
        assert [m.expires_at_ms for m in bus.peek(quick)][1:] == [start + MINUTE] * 2
        assert [m.expires_at_ms for m in bus.peek(slow)] == [start + SECOND, *[start + HOUR] * 2]
        await pass_ms(bus, clock, SECOND)
        assert dead(bus, quick) == [("own", "TTLExpiredException")]
        assert (there(bus, brief), there(bus, slow)) == (["1", "2"], ["1", "2"])
        await pass_ms(bus, clock, MINUTE - SECOND)
        assert [text for text, _ in dead(bus, quick)] == ["own", "1", "2"]
        assert there(bus, quick) == []
        assert there(bus, brief) == ["1", "2"]
        sound(bus)
        await pass_ms(bus, clock, MINUTE)
        assert (there(bus, brief), dead(bus, brief)) == ([], [])
        assert there(bus, slow) == ["1", "2"]
        await pass_ms(bus, clock, HOUR)
        assert there(bus, slow) == []
        sound(bus)


@pytest.mark.promise("B2", "L4")
@run
async def test_what_is_held_or_deferred_expires_by_the_subscriptions_time(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_topic("t")
        name = await bus.create_subscription(
            "t",
            "s",
            default_time_to_live_ms=MINUTE,
            lock_duration_ms=2 * MINUTE,
            dead_letter_on_expiration=True,
        )
        await send(bus, "t", "held", "deferred", "waiting")
        receiver = bus.receiver(name)
        held, deferred = await receiver.receive(2)
        await receiver.defer(deferred)
        await pass_ms(bus, clock, MINUTE)
        assert [text for text, _ in dead(bus, name)] == ["deferred", "waiting"]
        assert bus.subscription(name).held_count == 1
        await receiver.abandon(held)
        assert [text for text, _ in dead(bus, name)] == ["held", "deferred", "waiting"]
        await bus.change_subscription(name, default_time_to_live_ms=None)
        await send(bus, "t", "stays")
        await pass_ms(bus, clock, HOUR)
        assert there(bus, name) == ["stays"]
        await bus.change_subscription(name, default_time_to_live_ms=30 * MINUTE)
        await settle(bus)
        assert there(bus, name) == []
        sound(bus)


@pytest.mark.promise("B4")
@run
async def test_sessions_of_a_subscription(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (plain,) = await topic_with(bus, "plain")
        name = await bus.create_subscription("t", "s", requires_session=True)
        other = await bus.create_subscription("t", "other", requires_session=True)
        for text, session in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("e1", "")):
            await send(bus, "t", text, session_id=session)
        await send(bus, "t", "none")
        assert dead(bus, name) == [("none", "Session id is null")] == dead(bus, other)
        assert there(bus, plain) == ["a1", "b1", "a2", "e1", "none"]
        with pytest.raises(InvalidOperation):
            await get(bus, name)
        async with await bus.accept_session(name, "a", owner="me") as held:
            assert bodies(await held.receive(5)) == ["a1", "a2"]
            await held.set_state(b"half")
            async with await bus.accept_session(other) as same:
                assert (same.session_id, await same.get_state()) == ("a", None)
        assert {one.session_id: one.state for one in bus.sessions(name)} == {
            "a": b"half",
            "b": None,
            "": None,
        }
        async with await bus.accept_session(name, "") as held:
            (empty,) = await held.receive(5)
            await held.complete(empty)
        for taken in ("a", "b", ""):
            await bus.accept_session(other, taken)
        with pytest.raises(NoSession):
            await bus.accept_session(other)
        (letter,) = await get(bus, name, dead_letters=True)
        await bus.receiver(name, dead_letters=True).abandon(letter)
        assert await bus.purge(name, Filter(state="dead-lettered")) == 1
        assert len(dead(bus, other)) == 1
        sound(bus)


@pytest.mark.promise("B4", "B3")
@run
async def test_a_session_of_a_deleted_subscription_harms_nobody(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (plain,) = await topic_with(bus, "plain")
        name = await bus.create_subscription("t", "s", requires_session=True)
        await send(bus, "t", "1", session_id="a")
        session = await bus.accept_session(name, "a")
        (held,) = await session.receive(1)
        waiting = asyncio.create_task(bus.accept_session(name, wait_ms=HOUR))
        await asyncio.sleep(0)
        await bus.delete_subscription(name)
        for call in (
            session.renew_lock(),
            session.get_state(),
            session.set_state(b"x"),
            session.receive(1),
            session.complete(held),
            session.close(),
            waiting,
        ):
            with pytest.raises(EntityNotFound):
                await call
        assert (there(bus, plain), bus.alarms) == (["1"], [])
        sound(bus)


@pytest.mark.promise("X2")
@run
async def test_a_purge_ends_when_its_subscription_is_deleted(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        a, b = await topic_with(bus, "a", "b")
        await bus.send_batch("t", [msg(str(n)) for n in range(3_000)])
        purging = asyncio.create_task(bus.purge(a))
        await asyncio.sleep(0)
        await bus.delete_subscription(a)
        with pytest.raises(EntityNotFound):
            await purging
        assert (bus.subscription(b).active_count, bus.alarms) == (3_000, [])
        sound(bus)


@pytest.mark.promise("B7")
@run
async def test_paused_topics_and_subscriptions(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        a, b = await topic_with(bus, "a", "b")
        await send(bus, "t", "1")
        held = await get_one(bus, a)
        waiting = asyncio.create_task(bus.receiver(a).receive(wait_ms=HOUR))
        await asyncio.sleep(0)
        await bus.change_subscription(a, status="receive-disabled")
        with pytest.raises(EntityDisabled):
            await waiting
        with pytest.raises(EntityDisabled):
            await get(bus, a)
        await bus.receiver(a).complete(held)
        await send(bus, "t", "2")
        assert bodies(await get(bus, b)) == ["1", "2"]
        await bus.change_topic("t", status="send-disabled")
        with pytest.raises(EntityDisabled):
            await send(bus, "t", "3")
        await bus.change_subscription(a, status="active")
        assert bodies(await get(bus, a)) == ["2"]
        await bus.change_topic("t", status="active")
        assert [one.sequence_number for one in await send(bus, "t", "3")] == [3]
        sound(bus)


@pytest.mark.promise("B7")
@run
async def test_idle_subscriptions_and_topics_are_deleted(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    await bus.create_topic("t", auto_delete_on_idle_ms=HOUR)
    used, idle, ruled, waited = [
        await bus.create_subscription("t", name, auto_delete_on_idle_ms=10 * MINUTE)
        for name in ("used", "idle", "ruled", "waited")
    ]
    await pass_ms(bus, clock, 6 * MINUTE)
    await bus.close()
    clock.advance(HOUR)
    bus = await disks.bus(clock)
    await settle(bus)
    assert bus.topic("t").subscriptions == (idle, ruled, used, waited), "down is not idle"
    waiting = asyncio.create_task(bus.receiver(waited).receive(wait_ms=HOUR))
    await asyncio.sleep(0)
    for _ in range(4):
        await pass_ms(bus, clock, 3 * MINUTE)
        await send(bus, "t", "x")
        await get(bus, used)
        await bus.create_rule(ruled, Rule(f"r{clock.wall()}"))
    assert bus.topic("t").subscriptions == (ruled, used, waited), "sends are no use of one"
    assert await waiting
    await pass_ms(bus, clock, 10 * MINUTE)
    assert bus.topic("t").subscriptions == ()
    await pass_ms(bus, clock, HOUR)
    assert bus.topics() == []
    await bus.close()


@pytest.mark.promise("B7")
@run
async def test_a_topic_is_in_use_while_its_subscriptions_are(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        (name,) = await topic_with(bus, "s", auto_delete_on_idle_ms=HOUR)
        waiting = asyncio.create_task(bus.receiver(name).receive(wait_ms=10 * HOUR))
        await asyncio.sleep(0)
        for _ in range(3):
            await pass_ms(bus, clock, 50 * MINUTE)
        assert bus.topics() == ["t"]
        await send(bus, "t", "1")
        assert bodies(await waiting) == ["1"]
        await pass_ms(bus, clock, HOUR)
        assert bus.topics() == []


@pytest.mark.promise("B1", "X4")
@run
async def test_locks_counts_and_backoff_are_each_subscriptions_own(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_topic("t")
        short = await bus.create_subscription(
            "t", "short", lock_duration_ms=SECOND, max_delivery_count=2
        )
        slow = await bus.create_subscription("t", "slow", retry_backoff_ms=MINUTE)
        await send(bus, "t", "1")
        for expected in (1, 2):
            await get_one(bus, short)
            await pass_ms(bus, clock, SECOND)
            letters = dead(bus, short)
            assert (letters != []) == (expected == 2)
        assert letters == [("1", "MaxDeliveryCountExceeded")]
        held = await get_one(bus, slow)
        await bus.receiver(slow).abandon(held)
        assert await get(bus, slow) == []
        await pass_ms(bus, clock, MINUTE)
        assert (await get_one(bus, slow)).delivery_count == 1
        assert peek_everything(bus, short) == []
        sound(bus)
