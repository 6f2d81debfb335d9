"""Rules that are added and removed in a transaction: atomic with the rest of it (P11, B5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onibus import Bus, CorrelationFilter, Rule
from onibus.core.errors import (
    Busy,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    PartitionOffline,
    QuotaExceeded,
)
from tests.bus_helpers import ManualClock, bodies, get, msg, pull, run, send
from tests.gateway.fragile import FragileDisks, crash_everywhere, fail_everywhere
from tests.gateway.topic_helpers import sound, there, topic_with

RED = Rule("red", CorrelationFilter(subject="red"))
ALL = "$Default"


def names(bus: Bus, subscription: str) -> list[str]:
    return [rule.name for rule in bus.subscription(subscription).rules]


async def prepare(bus: Bus) -> Any:
    """Make a topic with two subscriptions, and a queue with a message that is held."""
    left, right = await topic_with(bus, "left", "right")
    await bus.create_queue("q")
    await send(bus, "q", "work")
    return left, right, (await get(bus, "q"))[0]


async def act(bus: Bus, prepared: Any) -> None:
    """Change rules of both subscriptions, complete the message and send two."""
    left, right, held = prepared
    async with bus.transaction() as transaction:
        await transaction.complete("q", held)
        await transaction.create_rule(left, RED)
        await transaction.delete_rule(left, ALL)
        await transaction.send("t", msg("red", subject="red"))
        await transaction.delete_rule(right, ALL)
        await transaction.send("t", msg("blue", subject="blue"))


async def happened(bus: Bus, prepared: Any) -> bool:
    """Return whether all of it is there; fail if a part of it is."""
    left, right, _ = prepared
    done = names(bus, left) == ["red"]
    assert names(bus, left) == (["red"] if done else [ALL])
    assert names(bus, right) == ([] if done else [ALL])
    # Messages of the transaction follow the rules that it makes.
    assert there(bus, left) == (["red"] if done else [])
    assert there(bus, right) == []
    assert len(bus.peek("q")) == (0 if done else 1)
    sound(bus)
    return done


@pytest.mark.promise("P11", "B5")
@run
async def test_rules_change_with_the_rest_of_a_transaction(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        prepared = await prepare(bus)
        left, right, _ = prepared
        transaction = bus.transaction()
        await transaction.create_rule(left, RED)
        await transaction.delete_rule(left, ALL)
        assert names(bus, left) == [ALL], "nothing happens before the commit"
        await send(bus, "t", "before")
        await transaction.rollback()
        assert (names(bus, left), there(bus, left)) == ([ALL], ["before"])
        assert bodies(await get(bus, left, delete=True)) == ["before"]
        assert bodies(await get(bus, right, delete=True)) == ["before"]
        await act(bus, prepared)
        assert await happened(bus, prepared)
        await send(bus, "t", "later", subject="red")
        assert (there(bus, left), there(bus, right)) == (["red", "later"], [])


@pytest.mark.promise("P11")
@run
async def test_a_transaction_of_rules_only(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        left, right, _ = await prepare(bus)
        async with bus.transaction() as transaction:
            for name in (left, right):
                await transaction.create_rule(name, RED)
                await transaction.change_rule(name, Rule("red", CorrelationFilter(subject="RED")))
                await transaction.delete_rule(name, ALL)
        assert [names(bus, name) for name in (left, right)] == [["red"], ["red"]]
        await send(bus, "t", "no", subject="red")
        await send(bus, "t", "yes", subject="RED")
        assert (there(bus, left), there(bus, right)) == (["yes"], ["yes"])


@pytest.mark.promise("P11", "B5")
@run
async def test_a_crash_at_any_commit(clock: ManualClock) -> None:
    once = await crash_everywhere(clock, prepare, act, happened, stores=("a",), at_once=True)
    assert once > 2


@pytest.mark.promise("P11", "B5")
@run
async def test_a_crash_at_any_commit_of_two_stores(clock: ManualClock) -> None:
    assert await crash_everywhere(clock, prepare, act, happened, at_once=True) > 2


@pytest.mark.promise("P11", "B5")
@run
async def test_a_store_or_the_namespace_fails_at_any_commit(clock: ManualClock) -> None:
    await fail_everywhere(clock, prepare, act, happened)


@pytest.mark.promise("P11")
@run
async def test_what_cannot_be_is_rejected_and_nothing_changes(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        left, _, held = await prepare(bus)
        transaction = bus.transaction()
        with pytest.raises(EntityExists):
            await transaction.create_rule(left, Rule(ALL))
        with pytest.raises(EntityNotFound):
            await transaction.delete_rule(left, "none")
        with pytest.raises(InvalidOperation):
            await transaction.create_rule("q", RED)
        with pytest.raises(EntityNotFound):
            await transaction.create_rule("t/subscriptions/none", RED)
        # What the transaction itself adds and removes counts.
        await transaction.create_rule(left, RED)
        with pytest.raises(EntityExists):
            await transaction.create_rule(left, RED)
        await transaction.delete_rule(left, "red")
        with pytest.raises(EntityNotFound):
            await transaction.delete_rule(left, "red")
        await transaction.create_rule(left, RED)
        await transaction.complete("q", held)
        # Another change of the same rule comes first: the commit is rejected as a whole.
        await bus.create_rule(left, Rule("red"))
        with pytest.raises(EntityExists):
            await transaction.commit()
        assert (names(bus, left), len(bus.peek("q"))) == ([ALL, "red"], 1)
        # Without the other rule it can be committed.
        await bus.delete_rule(left, "red")
        await transaction.commit()
        assert (names(bus, left), len(bus.peek("q"))) == ([ALL, "red"], 0)


@pytest.mark.promise("P11", "B5")
@run
async def test_of_two_changes_at_once_the_second_can_be_tried_again(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        left, _, held = await prepare(bus)
        first, second = bus.transaction(), bus.transaction()
        await first.create_rule(left, RED)
        await second.create_rule(left, Rule("blue"))
        await second.complete("q", held)
        outcomes = await asyncio.gather(first.commit(), second.commit(), return_exceptions=True)
        assert isinstance(outcomes[1], Busy)
        assert outcomes[1].retryable
        assert (names(bus, left), len(bus.peek("q"))) == ([ALL, "red"], 1)
        await second.commit()
        assert (names(bus, left), len(bus.peek("q"))) == ([ALL, "red", "blue"], 0)


@pytest.mark.promise("P11")
@run
async def test_a_subscription_that_is_deleted_before_the_commit(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        left, _, held = await prepare(bus)
        transaction = bus.transaction()
        await transaction.create_rule(left, RED)
        await transaction.complete("q", held)
        await bus.delete_subscription(left)
        await bus.create_subscription("t", "left")
        with pytest.raises(EntityNotFound):
            await transaction.commit()
        assert (names(bus, left), len(bus.peek("q"))) == ([ALL], 1)


@pytest.mark.promise("P10", "P11")
@run
async def test_rules_are_not_changed_while_a_store_is_down(clock: ManualClock) -> None:
    async with FragileDisks().bus(clock, "a", "b") as bus:
        left, _, held = await prepare(bus)
        store = bus.broker.find("t").stores[0]
        transaction = bus.transaction()
        await transaction.create_rule(left, RED)
        if bus.broker.find("q").stores[0] != store:
            await transaction.complete("q", held)
        pull(bus, store)
        with pytest.raises(PartitionOffline):
            await transaction.commit()
        assert names(bus, left) == [ALL]


@pytest.mark.promise("B5", "P11")
@run
async def test_changes_of_rules_count_with_the_messages(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        left, _, _ = await prepare(bus)
        transaction = bus.transaction()
        await transaction.send_batch("q", [msg(str(n)) for n in range(99)])
        await transaction.create_rule(left, RED)
        with pytest.raises(QuotaExceeded):
            await transaction.delete_rule(left, ALL)
