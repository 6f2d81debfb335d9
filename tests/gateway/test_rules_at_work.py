"""Rules (B3): which messages get into a subscription, and what actions make of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onibus import (
    Bus,
    CorrelationFilter,
    FalseFilter,
    Message,
    ReceivedMessage,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from onibus.core.errors import (
    EntityExists,
    EntityNotFound,
    InvalidArgument,
    InvalidFilter,
    InvalidName,
    InvalidOperation,
)
from onibus.core.limits import BLOCK_BYTES_MAX
from tests.bus_helpers import (
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    get,
    get_one,
    msg,
    numbers,
    partition_at,
    pass_ms,
    peek_everything,
    run,
    send,
)
from tests.gateway.topic_helpers import dead, reopen, sound, sql, there

#: A filter, a message that it selects, and one that it does not.
KINDS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (
        SqlFilter("color = 'red'"),
        {"properties": {"Color": "red"}},
        {"properties": {"color": "RED"}},
    ),
    (SqlFilter("size > @low", {"@low": 4}), {"properties": {"size": 4.5}}, {"properties": {}}),
    (SqlFilter("sys.Label LIKE 'a!_%' ESCAPE '!'"), {"subject": "a_b"}, {"subject": "ab"}),
    (
        SqlFilter("NOT EXISTS(x) OR x IS NULL"),
        {"properties": {"x": None}},
        {"properties": {"x": 0}},
    ),
    (SqlFilter("sys.MessageId IN ('1', '2')"), {"message_id": "2"}, {"message_id": "3"}),
    (SqlFilter("sys.SequenceNumber % 2 = 1"), {}, {}),
    (CorrelationFilter(correlation_id="c"), {"correlation_id": "c"}, {"correlation_id": "C"}),
    (
        CorrelationFilter(subject="s", to="t", properties={"n": 1}),
        {"subject": "s", "to": "t", "properties": {"N": 1.0}},
        {"subject": "s", "properties": {"n": 1}},
    ),
]


async def subscribed(bus: Bus, *rules: Rule, **settings: Any) -> str:
    """Make a topic with one subscription of these rules."""
    await bus.create_topic("t")
    return await bus.create_subscription("t", "s", rules=list(rules), **settings)


def view(messages: list[ReceivedMessage], *fields: str) -> list[tuple[Any, ...]]:
    """Return chosen properties of messages."""
    return [tuple(one.properties.get(field) for field in fields) for one in messages]


@pytest.mark.promise("B3")
@pytest.mark.parametrize(("wanted", "selected", "other"), KINDS)
def test_each_kind_of_filter(
    wanted: Any, selected: dict[str, Any], other: dict[str, Any], clock: ManualClock
) -> None:
    @run
    async def test() -> None:
        async with Bus.ephemeral(clock=clock) as bus:
            name = await subscribed(bus, Rule("r", wanted))
            await bus.send_batch("t", [msg("yes", **selected), msg("no", **other)])
            assert bodies(await get(bus, name)) == ["yes"]
            sound(bus)

    test()


@pytest.mark.promise("B3")
@run
async def test_true_false_and_none_at_all(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_topic("t")
        every = await bus.create_subscription("t", "every")
        no = await bus.create_subscription("t", "no", rules=[Rule("f", FalseFilter())])
        empty = await bus.create_subscription("t", "empty", rules=[])
        both = await bus.create_subscription(
            "t", "both", rules=[Rule("f", FalseFilter()), Rule("t", TrueFilter())]
        )
        await send(bus, "t", "1", "2")
        assert there(bus, every) == ["1", "2"] == there(bus, both)
        assert (there(bus, no), there(bus, empty)) == ([], [])
        assert bus.subscription(every).rules == (Rule("$Default"),)
        sound(bus)


@pytest.mark.promise("B3", "P11")
@pytest.mark.parametrize("partitioned", [False, True])
def test_rules_are_added_and_removed(partitioned: bool, clock: ManualClock) -> None:
    @run
    async def test() -> None:
        async with Bus.ephemeral(clock=clock) as bus:
            await bus.create_topic("t", enable_partitioning=partitioned)
            name = await bus.create_subscription("t", "s")

            async def arrives(color: str) -> bool:
                before = bus.subscription(name).active_count
                for _ in range(20):
                    await send(bus, "t", color, properties={"color": color})
                came = bus.subscription(name).active_count - before
                assert came in (0, 20)
                return came == 20

            assert await arrives("red")
            await bus.delete_rule(name, "$DEFAULT")
            assert not await arrives("red")
            await bus.create_rule(name, sql("red", "color = 'red'"))
            await bus.create_rule(name, sql("blue", "color = 'blue'"))
            assert (await arrives("red"), await arrives("blue")) == (True, True)
            assert not await arrives("green")
            await bus.change_rule(name, sql("RED", "color = 'green'"))
            assert (await arrives("red"), await arrives("green")) == (False, True)
            assert [rule.name for rule in bus.subscription(name).rules] == ["RED", "blue"]
            await bus.delete_rule(name, "red")
            assert (await arrives("green"), await arrives("blue")) == (False, True)
            assert [rule.name for rule in bus.subscription(name).rules] == ["blue"]
            sound(bus)

    test()


@pytest.mark.promise("B3")
@run
async def test_rules_outlive_a_restart(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    rules = [
        Rule("all", SqlFilter("n > @n", {"@n": 1.5}), SqlAction("SET x = @x", {"@x": b"\0\1"})),
        Rule("one", CorrelationFilter(subject="s", properties={"at": moment, "f": False})),
        Rule("none", FalseFilter()),
    ]
    name = await subscribed(bus, *rules)
    bus = await reopen(bus, disks, clock)
    assert bus.subscription(name).rules == tuple(rules)
    await send(bus, "t", "1", properties={"n": 2})
    await send(bus, "t", "2", subject="s", properties={"at": moment, "f": False})
    await send(bus, "t", "3")
    assert view(await get(bus, name), "x", "RuleName") == [(b"\0\1", "all"), (None, None)]
    await bus.close()


@pytest.mark.promise("B3")
@run
async def test_an_action_changes_the_copy_of_its_subscription_only(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    action = "SET size = size * 2; REMOVE color; SET sys.Label = 'new'; SET fresh = sys.MessageId"
    changed = await subscribed(bus, sql("act", "1 = 1", action))
    plain = await bus.create_subscription("t", "plain")
    before = {"Size": 21, "color": "red", "left": None}
    await bus.send("t", msg("1", subject="old", message_id="m", properties=before))
    for _ in range(2):
        (one,), (other,) = bus.peek(changed), bus.peek(plain)
        assert one.properties == {"Size": 42, "left": None, "fresh": "m", "RuleName": "act"}
        assert (one.message.subject, one.sequence_number) == ("new", 1)
        assert other.message == Message(body=b"1", subject="old", message_id="m", properties=before)
        bus = await reopen(bus, disks, clock)
    receiver = bus.receiver(changed)
    held = await get_one(bus, changed)
    await receiver.abandon(held, properties={"left": 1})
    bus = await reopen(bus, disks, clock)
    receiver = bus.receiver(changed)
    (one,) = await receiver.receive()
    assert one.properties == {"Size": 42, "left": 1, "fresh": "m", "RuleName": "act"}
    assert (one.message.subject, one.delivery_count) == ("new", 1)
    await receiver.dead_letter(one, reason="r", properties={"why": "w"})
    (letter,) = bus.peek(changed, dead_letters=True)
    assert (letter.message.subject, letter.properties["why"]) == ("new", "w")
    sound(bus)
    await bus.close()


@pytest.mark.promise("B3", "S2")
@run
async def test_rules_with_actions_make_a_copy_each(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    both = await subscribed(bus, sql("a", "1 = 1", "SET x = 1"), sql("b", "1 = 1", "SET x = 2"))
    mixed = await bus.create_subscription(
        "t",
        "mixed",
        rules=[
            Rule("p"),
            sql("c", "n = 1", "SET x = 3"),
            Rule("q"),
            sql("d", "n = 2", "SET x = 4"),
        ],
    )
    plain = await bus.create_subscription("t", "plain")
    await bus.send_batch("t", [msg("1", properties={"n": 1}), msg("2", properties={"n": 2})])
    for _ in range(2):
        found = peek_everything(bus, both)
        assert sorted(view(found, "n", "x", "RuleName")) == [
            (1, 1, "a"), (1, 2, "b"), (2, 1, "a"), (2, 2, "b"),
        ]  # fmt: skip
        assert sorted(view(peek_everything(bus, mixed), "n", "RuleName"), key=str) == [
            (1, "c"), (1, None), (2, "d"), (2, None),
        ]  # fmt: skip
        assert numbers(peek_everything(bus, plain)) == [1, 2]
        copies = [one for one in found if one.sequence_number > 2]
        assert [one.message.enqueued_sequence_number for one in copies] == [1, 2]
        bus = await reopen(bus, disks, clock)
    assert [one.sequence_number for one in await send(bus, "t", "3")] == [7], "no number is lost"
    sound(bus)
    await bus.close()


@pytest.mark.promise("B3", "B2")
@run
async def test_an_action_that_changes_the_time_to_live(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    shorten = SqlAction("SET sys.TimeToLive = @t", {"@t": timedelta(milliseconds=SECOND)})
    short = await subscribed(bus, Rule("r", TrueFilter(), shorten))
    forever = await bus.create_subscription(
        "t", "forever", rules=[sql("r", "1 = 1", "REMOVE sys.TimeToLive")]
    )
    await send(bus, "t", "1", time_to_live_ms=MINUTE)
    bus = await reopen(bus, disks, clock)
    await pass_ms(bus, clock, SECOND)
    assert (there(bus, short), there(bus, forever)) == ([], ["1"])
    await pass_ms(bus, clock, MINUTE)
    assert there(bus, forever) == ["1"]
    assert bus.peek(forever)[0].expires_at_ms is None
    sound(bus)
    await bus.close()


@pytest.mark.promise("B3", "B4")
@run
async def test_an_action_that_changes_the_session(clock: ManualClock) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    by_color = await subscribed(
        bus, sql("r", "EXISTS(color)", "SET sys.SessionId = color"), requires_session=True
    )
    removed = await bus.create_subscription(
        "t", "removed", rules=[sql("r", "1 = 1", "REMOVE sys.SessionId")], requires_session=True
    )
    for n, color in enumerate(("red", "blue", "red", "")):
        await send(bus, "t", str(n), session_id="s", properties={"color": color})
    bus = await reopen(bus, disks, clock)
    sessions = {one.session_id: one.ready_count for one in bus.sessions(by_color)}
    assert sessions == {"red": 2, "blue": 1, "": 1}
    async with await bus.accept_session(by_color, "red") as session:
        found = await session.receive(9)
        assert bodies(found) == ["0", "2"]
        assert {one.session_id for one in found} == {"red"}
        await session.complete(found)
    assert [reason for _, reason in dead(bus, removed)] == ["Session id is null"] * 4
    sound(bus)
    await bus.close()


@pytest.mark.promise("B3", "B4", "P11")
@run
async def test_sessions_are_not_spread_over_partitions_by_an_action(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_topic("t", enable_partitioning=True)
        spreads = sql("r", "1 = 1", "SET x = 1; SET SYS.sessionid = color")
        with pytest.raises(InvalidOperation):
            await bus.create_subscription("t", "s", rules=[spreads], requires_session=True)
        name = await bus.create_subscription("t", "s", requires_session=True)
        with pytest.raises(InvalidOperation):
            await bus.create_rule(name, spreads)
        await bus.create_rule(name, sql("fine", "1 = 1", "SET sessionid = color"))
        plain = await bus.create_subscription("t", "plain", rules=[spreads])
        await send(bus, "t", "1", properties={"color": "red"})
        assert [one.session_id for one in await get(bus, plain)] == ["red"]
        sound(bus)


@pytest.mark.promise("B3", "S5")
@run
async def test_rules_run_when_a_scheduled_message_is_activated(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        name = await subscribed(bus, sql("red", "color = 'red'"))
        for color in ("red", "blue"):
            later = msg(color, properties={"color": color})
            await bus.schedule("t", later, clock.wall() + MINUTE)
        await bus.create_rule(
            name, sql("blue", "color = 'blue' AND sys.SequenceNumber > 2", "SET late = 1")
        )
        await bus.delete_rule(name, "red")
        await pass_ms(bus, clock, MINUTE)
        (found,) = await get(bus, name)
        assert (found.body, found.properties["late"]) == (b"blue", 1)
        sound(bus)


#: Rules that cannot be evaluated on a message without `n`, or with a text in it.
BROKEN: list[Callable[[], Rule]] = [
    lambda: sql("r", "10 / n > 1"),
    lambda: sql("r", "1 = 1", "SET x = 10 / n"),
    lambda: sql("r", "1 = 1", "SET sys.TimeToLive = n"),
]


@pytest.mark.promise("B3")
@pytest.mark.parametrize("rule", BROKEN)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_what_a_rule_cannot_be_evaluated_on(
    rule: Callable[[], Rule], kept: bool, alone: bool, clock: ManualClock
) -> None:
    @run
    async def test() -> None:
        disks = Disks()
        bus = await disks.bus(clock)
        rules = [rule()] if alone else [rule(), Rule("no", FalseFilter())]
        name = await subscribed(bus, *rules, dead_letter_on_filter_error=kept)
        also = await bus.create_subscription("t", "also", rules=[rule(), Rule("yes")])
        plain = await bus.create_subscription("t", "plain")
        sent = await bus.send("t", msg("bad", properties={"n": 0}))
        assert sent.sequence_number == 1
        expected = [("bad", "FilterEvaluationException")] if kept else []
        assert (there(bus, name), dead(bus, name)) == ([], expected)
        assert there(bus, also) == ["bad"] == there(bus, plain), "another rule selects it"
        bus = await reopen(bus, disks, clock)
        for letter in await get(bus, name, dead_letters=True):
            assert letter.dead_letter_description
            await bus.receiver(name, dead_letters=True).complete(letter)
        assert dead(bus, name) == []
        sound(bus)
        await bus.close()

    test()


@pytest.mark.promise("B3")
@run
async def test_large_copies_are_cut_into_blocks(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        rules = [sql(f"r{n}", "1 = 1", f"SET x = {n}") for n in range(4)]
        name = await subscribed(bus, *rules)
        await bus.send_batch("t", [msg("x" * 100_000) for _ in range(10)])
        assert bus.subscription(name).active_count == 40
        sizes = [place.size for place in partition_at(bus, "t").log.places]
        assert max(sizes) < BLOCK_BYTES_MAX + 10_000
        assert len({one.sequence_number for one in peek_everything(bus, name)}) == 40
        sound(bus)


@pytest.mark.promise("B3")
@run
async def test_bad_rules_are_refused(clock: ManualClock) -> None:
    for make in (
        lambda: SqlFilter("a = "),
        lambda: SqlFilter("a = '" + "x" * 1_024 + "'"),
        lambda: SqlFilter("(" * 33 + "a = 1" + ")" * 33),
        lambda: SqlFilter("sys.Nothing = 1"),
        lambda: SqlFilter("a = @missing"),
        lambda: SqlAction("SET sys.SequenceNumber = 1"),
        lambda: SqlAction("SET a = 1;" * 33),
        lambda: CorrelationFilter(),
        lambda: Rule("r", "a = 1"),  # type: ignore[arg-type]
        lambda: Rule("r", TrueFilter(), "SET a = 1"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidFilter):
            make()
    for bad in ("", "x" * 51, "a/b", "a?b", 5):
        with pytest.raises(InvalidName):
            Rule(bad)  # type: ignore[arg-type]
    async with Bus.ephemeral(clock=clock) as bus:
        name = await subscribed(bus, Rule("One"))
        with pytest.raises(EntityExists):
            await bus.create_rule(name, Rule("ONE"))
        with pytest.raises(EntityExists):
            await bus.create_subscription("t", "u", rules=[Rule("a"), Rule("A")])
        for wrong in ("r", Rule("r"), [1], {Rule: 1}):
            with pytest.raises(InvalidArgument):
                await bus.create_subscription("t", "u", rules=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            await bus.create_rule(name, SqlFilter("a = 1"))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            await bus.change_rule(name, SqlFilter("a = 1"))  # type: ignore[arg-type]
        with pytest.raises(EntityNotFound):
            await bus.change_rule(name, Rule("two"))
        for unknown in ("two", 5):
            with pytest.raises(EntityNotFound):
                await bus.delete_rule(name, unknown)  # type: ignore[arg-type]
        await bus.create_queue("q")
        for other in ("t", "q"):
            with pytest.raises(InvalidOperation):
                await bus.create_rule(other, Rule("r"))
        assert bus.subscription(name).rules == (Rule("One"),)
        assert bus.topic("t").subscriptions == (name,)
