"""Topics, rules, transactions and forwarding (B3, B5, B6, P8, P9, P11) through the server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from onibus import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter
from onibus.core.errors import InvalidOperation, LockLost, QuotaExceeded
from tests.bus_helpers import KEYS, keys_of, run
from tests.over_http.helpers import (
    MINUTE,
    Open,
    bodies,
    everything,
    get,
    get_one,
    msg,
    numbers,
    partition_index,
    picture,
    send,
    until,
)
from tests.server.processes import PATIENCE_S, Served
from tests.server.server_helpers import developing

BOTH = pytest.mark.parametrize("partitioned", [False, True])


async def comes(client: Any, entity: str, *texts: str, **how: Any) -> list[Any]:
    """Wait until an entity has just these messages: forwarding takes a moment."""

    async def there() -> list[Any] | None:
        found = await everything(client, entity, **how)
        return found if sorted(bodies(found)) == sorted(texts) else None

    found: list[Any] = await until(there)
    return found


@pytest.mark.promise("B3", "P11", "P12")
@BOTH
@run
async def test_filters_and_actions(connect: Open, partitioned: bool) -> None:
    async with connect() as client:
        await client.create_topic("t", enable_partitioning=partitioned)
        every = await client.create_subscription("t", "every")
        large = await client.create_subscription(
            "t",
            "large",
            rules=[Rule("r", SqlFilter("amount > 100"), SqlAction("SET priority = 1"))],
        )
        red = await client.create_subscription(
            "t", "red", rules=[Rule("r", CorrelationFilter(subject="red"))]
        )
        none = await client.create_subscription("t", "none", rules=[Rule("r", FalseFilter())])
        await send(client, "t", "1", properties={"amount": 500}, subject="red")
        await send(client, "t", "2", properties={"amount": 5})
        assert sorted(bodies(await everything(client, every))) == ["1", "2"]
        (found,) = await get(client, large)
        assert (found.body, found.properties["priority"]) == (b"1", 1)
        assert bodies(await everything(client, red)) == ["1"]
        assert await everything(client, none) == []
        await client.create_rule(none, Rule("blue", CorrelationFilter(subject="blue")))
        await client.delete_rule(red, "r")
        await send(client, "t", "3", subject="blue")
        await send(client, "t", "4", subject="red")
        assert bodies(await everything(client, none)) == ["3"]
        assert bodies(await everything(client, red)) == ["1"]
        assert [rule.name for rule in await client.rules(none)] == ["r", "blue"]


@pytest.mark.promise("B3")
@run
async def test_what_one_subscription_does_the_others_do_not_notice(connect: Open) -> None:
    async with connect() as client:
        await client.create_topic("t")
        a, b = [await client.create_subscription("t", name) for name in "ab"]
        await send(client, "t", "1", "2", "3", "4")
        receiver = client.receiver(a)
        one, two, three, four = await receiver.receive(4)
        with pytest.raises(LockLost):
            await client.receiver(b).complete(one)
        await receiver.complete(one)
        await receiver.defer(two)
        await receiver.dead_letter(three, reason="no")
        await receiver.abandon(four, properties={"seen": True})
        info = await client.subscription(a)
        assert (info.active_count, info.deferred_count, info.dead_lettered_count) == (1, 1, 1)
        assert [(m.state, m.delivery_count, m.properties) for m in await client.peek(b)] == [
            ("active", 0, {})
        ] * 4
        await client.delete_subscription(a)
        assert (await client.topic("t")).subscriptions == (b,)
        assert len(await get(client, b)) == 4


@pytest.mark.promise("B5")
@run
async def test_all_verbs_together_or_not_at_all(connect: Open) -> None:
    async with connect() as client:
        for name in ("in", "out"):
            await client.create_queue(name)
        await send(client, "in", "done", "back", "wait", "later", "dead")
        receiver = client.receiver("in", renew_ms=0)
        done, back, wait, later, broken = await receiver.receive(5)
        async with client.transaction() as work:
            await work.complete(receiver, done)
            await work.abandon(receiver, back, properties={"n": 1})
            await work.abandon("in", wait, delay_ms=MINUTE)
            await work.defer(receiver, later)
            await work.dead_letter(receiver, broken, reason="r", description="d")
            await work.send("out", msg("one"))
            await work.send_batch("in", [msg("two")])
            assert await client.peek("out") == []
        assert bodies(await client.peek("out")) == ["one"]
        assert [(m.body, m.state) for m in await client.peek("in")] == [
            (b"back", "active"),
            (b"wait", "delayed"),
            (b"later", "deferred"),
            (b"two", "active"),
        ]
        (letter,) = await client.peek("in", dead_letters=True)
        assert (letter.dead_letter_reason, letter.dead_letter_description) == ("r", "d")
        again = await get_one(client, "in")
        before = await picture(client, "in"), await picture(client, "out")
        failing = client.transaction()
        await failing.complete("in", again)
        await failing.send("out", msg("never"))
        await failing.complete("in", done)
        with pytest.raises(LockLost):
            await failing.commit()
        assert (await picture(client, "in"), await picture(client, "out")) == before
        await receiver.complete(again)


@pytest.mark.promise("B5")
@run
async def test_a_hundred_messages(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        tx = client.transaction()
        await tx.send_batch("q", [msg("x")] * 101)
        with pytest.raises(QuotaExceeded):
            await tx.commit()
        tx = client.transaction()
        await tx.send_batch("q", [msg("x")] * 100)
        assert len(await tx.commit()) == 100


@pytest.mark.promise("P8")
@run
async def test_one_key_a_transaction_where_it_is_partitioned(connect: Open) -> None:
    one, other = keys_of(3)
    async with connect() as client:
        await client.create_queue("p", enable_partitioning=True)
        await client.create_queue("s", requires_session=True)
        await client.create_queue("ps", requires_session=True, enable_partitioning=True)
        await client.create_queue("plain")
        async with client.transaction() as tx:
            await tx.send("p", msg("1", partition_key=one))
            await tx.send("p", msg("2", session_id=one))
            await tx.send_batch("s", [msg("3", session_id="x"), msg("4", session_id="y")])
            await tx.send("ps", msg("5", session_id="x"))
        wrong: list[tuple[str, list[Any]]] = [
            ("p", [msg("x", partition_key=one), msg("x", partition_key=other)]),
            ("p", [msg("x", partition_key=one), msg("x")]),
            ("p", [msg("x")]),
            ("s", [msg("no session")]),
            ("ps", [msg("x", session_id="x"), msg("x", session_id="y")]),
        ]
        for name, batch in wrong:
            tx = client.transaction()
            await tx.send("plain", msg("never"))
            await tx.send_batch(name, batch)
            with pytest.raises(InvalidOperation):
                await tx.commit()
            with pytest.raises(InvalidOperation):
                await tx.commit()
        assert [len(await client.peek(name)) for name in ("p", "s", "ps", "plain")] == [2, 2, 1, 0]


@pytest.mark.promise("P11")
@run
async def test_rules_in_a_transaction_are_refused_whole(connect: Open, server: Served) -> None:
    async with connect() as client:
        await client.create_topic("t", enable_partitioning=True)
        name = await client.create_subscription("t", "s")
        body = {
            "sends": [{"entity": "t", "messages": [{"body": "x", "partition_key": "k"}]}],
            "rules": [{"entity": name, "name": "r", "sql": "1 = 1"}],
        }
        async with httpx.AsyncClient(
            base_url=server.http, trust_env=False, timeout=PATIENCE_S
        ) as http:
            told = await http.post("/v1/transactions", json=body, headers=developing())
        assert (told.status_code, told.json()["outcome"]) == (400, "refused")
        assert await everything(client, name) == []
        assert [rule.name for rule in await client.rules(name)] == ["$Default"]


@pytest.mark.promise("B6", "S2")
@run
async def test_four_hops_and_the_fifth_is_a_dead_letter(connect: Open) -> None:
    async with connect() as client:
        target = None
        for hop in reversed(range(6)):
            await client.create_queue(f"h{hop}", forward_to=target)
            target = f"h{hop}"
        with pytest.raises(InvalidOperation):
            await client.change_queue("h5", forward_to="h0")
        await send(client, "h1", "from h1")
        await send(client, "h0", "from h0")
        (forwarded,) = await comes(client, "h5", "from h1")
        assert forwarded.message.hop_count == 4
        (letter,) = await comes(client, "h4", "from h0", dead_letters=True)
        assert letter.dead_letter_reason == "MaxTransferHopCountExceeded"


@pytest.mark.promise("B6")
@run
async def test_dead_letters_go_on_with_their_reasons(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("morgue")
        await client.create_queue("in", forward_dead_letters_to="morgue")
        await send(client, "in", "bad")
        await client.receiver("in").dead_letter(
            await get_one(client, "in"), reason="r", description="d"
        )
        (found,) = await comes(client, "morgue", "bad")
        assert found.properties["DeadLetterReason"] == "r"
        assert found.properties["DeadLetterErrorDescription"] == "d"


@pytest.mark.promise("P9", "P4", "D10")
@run
async def test_from_to_and_between_partitioned_entities(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue(
            "end", enable_partitioning=True, requires_duplicate_detection=True
        )
        await client.create_queue("middle", enable_partitioning=True, forward_to="end")
        await client.create_queue("start", forward_to="middle")
        batch = [msg(key, partition_key=key, message_id="m") for key in KEYS]
        await client.send_batch("start", batch + batch)
        found = await comes(client, "end", *KEYS)
        indexes = [partition_index(number) for number in numbers(found)]
        assert [KEYS[index] for index in indexes] == bodies(found)
        assert (await client.queue("end")).duplicates_dropped == 16
