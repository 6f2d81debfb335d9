"""Every call once: of the asyncio client, of the blocking one, and on a Bus in this process."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from onibus import Bus, CorrelationFilter, Filter, Message, Rule, SqlAction, SqlFilter
from onibus.client import AsyncClient
from onibus.core.errors import (
    CheckpointMismatch,
    EntityExists,
    EntityNotFound,
    InvalidArgument,
    InvalidFilter,
    InvalidOperation,
    KeyExists,
    KeyNotFound,
    LockLost,
    MessageNotFound,
    NoSession,
    ReaderTaken,
    SessionLocked,
)
from tests.bus_helpers import run
from tests.client.conftest import Open
from tests.client.server_helpers import Awaited, ServerThread


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


@run
async def test_queues(connect: Open) -> None:
    async with connect() as client:
        made = await client.create_queue("Orders", lock_duration_ms=5_000)
        assert (made.name, made.kind, made.settings.lock_duration_ms) == ("orders", "queue", 5_000)
        assert await client.queues() == ["orders"]
        changed = await client.change_queue("orders", max_delivery_count=3)
        assert changed.settings.max_delivery_count == 3
        assert (await client.queue("orders")).settings == changed.settings
        with pytest.raises(EntityExists):
            await client.create_queue("orders")
        await client.delete_queue("orders")
        with pytest.raises(EntityNotFound):
            await client.queue("orders")


@run
@pytest.mark.promise("B3")
async def test_topics_subscriptions_and_rules(connect: Open) -> None:
    async with connect() as client:
        await client.create_topic("news")
        rules = [Rule("big", SqlFilter("size > @least", {"@least": 3}), SqlAction("SET big = 1"))]
        whole = await client.create_subscription("news", "all", rules=rules)
        assert whole == "news/subscriptions/all"
        assert await client.topics() == ["news"]
        assert (await client.topic("news")).subscriptions == (whole,)
        red = Rule("red", CorrelationFilter(subject="red", properties={"at": datetime.now(UTC)}))
        await client.create_rule(whole, red)
        assert [rule.name for rule in await client.rules(whole)] == ["big", "red"]
        assert (await client.subscription(whole)).rules == (*rules, red)
        await client.change_rule(whole, Rule("red", SqlFilter("subject = 'red'")))
        assert (await client.rules(whole))[1].filter == SqlFilter("subject = 'red'")
        await client.delete_rule(whole, "red")
        changed = await client.change_subscription(whole, max_delivery_count=4)
        assert changed.settings.max_delivery_count == 4
        await client.change_topic("news", default_time_to_live_ms=60_000)
        await client.send("news", Message(properties={"size": 4}))
        await client.send("news", Message(properties={"size": 2}))
        async with client.receiver(whole) as receiver:
            [received] = await receiver.receive(10)
        assert received.properties == {"size": 4, "big": 1, "RuleName": "big"}
        with pytest.raises(InvalidFilter) as refused:
            await client.create_rule(whole, Rule("bad", SqlFilter("size >")))
        assert refused.value.position is not None
        await client.delete_subscription(whole)
        await client.delete_topic("news")
        assert await client.topics() == []


@run
@pytest.mark.promise("D1", "D11", "X1", "X9")
async def test_sends_and_duplicates(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_duplicate_detection=True)
        whole = Message(
            body=b"\xff\x00",
            message_id="a",
            properties={"n": 1, "raw": b"\x00", "at": datetime(2026, 1, 2, tzinfo=UTC)},
            subject="s",
            correlation_id="c",
            content_type="t",
            to="to",
            reply_to="r",
            time_to_live_ms=600_000,
        )
        first = await client.send("q", whole)
        again = await client.send("q", whole)
        assert (first.duplicate_of, again.duplicate_of) == (None, first.sequence_number)
        sent = await client.send_batch("q", [whole, Message(body=b"b")])
        assert [one.duplicate_of for one in sent] == [first.sequence_number, None]
        table = pa.table({"body": [b"c", b"d"], "message_id": ["a", None]})
        rows = await client.send_arrow("q", table)
        assert (rows.accepted, rows.duplicates) == (1, 1)
        assert rows.duplicate_of.to_pylist() == [first.sequence_number, None]
        seen = await client.peek("q")
        assert bodies(seen) == [b"\xff\x00", b"b", b"d"]
        assert seen[0].message == whole
        assert all(one.message_id for one in seen)
        dropped = await client.duplicates("q")
        assert [(one[0], one[2]) for one in dropped] == [("a", first.sequence_number)] * 3
        assert (await client.queue("q")).duplicates_dropped == 3


@run
@pytest.mark.promise("S5")
async def test_scheduling_and_cancelling(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        due = time.time_ns() // 1_000_000 + 3_600_000
        number = await client.schedule("q", Message(body=b"later"), due)
        [waiting] = await client.peek("q", where=Filter(state="scheduled"))
        assert waiting.sequence_number == number
        await client.cancel_scheduled("q", [number])
        with pytest.raises(MessageNotFound):
            await client.cancel_scheduled("q", [number])


@run
@pytest.mark.promise("B1", "L1", "L2", "X3", "X4")
async def test_receiving_and_settling(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        await client.send_batch("q", [Message(body=b"%d" % at) for at in range(5)])
        async with client.receiver("q") as receiver:
            zero, one, two, three, four = await receiver.receive(5, wait_ms=1_000)
            assert await receiver.renew(zero) == zero.locked_until_ms
            await receiver.complete(zero)
            await receiver.abandon(one, properties={"why": "tired"})
            await receiver.defer(two)
            await receiver.dead_letter(three, reason="bad", description="very")
            await receiver.complete([four])
            with pytest.raises(LockLost):
                await receiver.complete(four)
            [back] = await receiver.receive()
            assert (back.properties, back.delivery_count) == ({"why": "tired"}, 1)
            await receiver.complete(back)
            [deferred] = await receiver.receive_deferred([two.sequence_number])
            assert (deferred.body, deferred.state) == (b"2", "deferred locked")
            await receiver.abandon(deferred)
        await client.undefer("q", [two.sequence_number])
        async with client.receiver("q", delete=True) as receiver:
            assert bodies(await receiver.receive(5)) == [b"2"]
            assert await receiver.receive(5) == []
        async with client.receiver("q", dead_letters=True) as receiver:
            [dead] = await receiver.receive()
            assert (dead.dead_letter_reason, dead.dead_letter_description) == ("bad", "very")


@run
async def test_a_receiver_is_walked_through(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        await client.send_batch("q", [Message(body=b"%d" % at) for at in range(4)])
        walked = []
        async with client.receiver("q") as receiver:
            async for message in receiver:
                walked.append(message.body)
                await receiver.complete(message)
                if len(walked) == 4:
                    break
        assert walked == [b"0", b"1", b"2", b"3"]


@run
@pytest.mark.promise("B4", "X8")
async def test_sessions(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_session=True)
        with pytest.raises(NoSession):
            await client.accept_session("q")
        await client.send("q", Message(body=b"1", session_id="s"))
        await client.send("q", Message(body=b"2", session_id="s"))
        async with await client.accept_session("q", owner="me") as held:
            assert held.session_id == "s"
            with pytest.raises(SessionLocked):
                await client.accept_session("q", "s")
            await held.set_state(b"\xfe\xff")
            assert await held.get_state() == b"\xfe\xff"
            assert await held.renew_lock() == held.locked_until_ms
            first, second = await held.receive(2, wait_ms=500)
            await held.defer(first)
            await held.complete(second)
            [deferred] = await held.receive_deferred([first.sequence_number])
            assert deferred.body == b"1"
            [info] = await client.sessions("q")
            assert (info.session_id, info.lock_holder, info.state) == ("s", "me", b"\xfe\xff")
        async with await client.accept_session("q", "s") as again:
            await again.set_state(None)
            assert await again.get_state() is None


@run
@pytest.mark.promise("F4", "F9")
async def test_fifo_queues(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", fifo=True, content_based_deduplication=True)
        letter = Message(body=b"same", session_id="g")
        first = await client.send("q", letter, make_id=False)
        assert (await client.send("q", letter, make_id=False)).duplicate_of == first.sequence_number
        async with client.fifo_receiver("q") as receiver:
            [received] = await receiver.receive(wait_ms=100, visibility_ms=30_000)
            [again] = await receiver.receive(attempt_id=receiver.attempt_id)
            assert again.token == received.token
            await receiver.change_visibility(received, 0)
            [back] = await receiver.receive()
            await receiver.complete(back)


@run
@pytest.mark.promise("X2", "X5")
async def test_peek_and_purge_with_filters(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        await client.send_batch(
            "q", [Message(body=b"n%d" % at, properties={"n": at}) for at in range(30)]
        )
        where = Filter(sql="n >= @n", sql_parameters={"@n": 28})
        assert bodies(await client.peek("q", where=where)) == [b"n28", b"n29"]
        assert bodies(await client.peek("q", start=5, limit=1)) == [b"n4"]
        every = [one async for one in client.peek_all("q")]
        assert len(every) == 30
        assert await client.purge("q", Filter(body_contains=b"n1")) == 11
        assert await client.purge("q", forget_ids=True) == 19
        with pytest.raises(InvalidArgument, match="state"):
            await client.peek("q", where=Filter(state="asleep"))


@run
@pytest.mark.promise("X6")
async def test_dead_letters_are_resubmitted(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        await client.create_queue("other")
        await client.send_batch("q", [Message(body=b"a"), Message(body=b"b")])
        receiver = client.receiver("q")
        for message in await receiver.receive(2):
            await receiver.dead_letter(message, reason="bad")
        await receiver.close()
        planned = await client.resubmit("q", where=Filter(), dry_run=True)
        assert list(planned.moved.values()) == [None, None]
        first = min(planned.moved)
        moved = await client.resubmit("q", [first], to="other")
        assert moved.moved[first] is not None
        await client.resubmit("q", where=Filter())
        assert bodies(await client.peek("other")) == [b"a"]
        assert bodies(await client.peek("q")) == [b"b"]
        assert await client.alarms() == []


async def _fail_inside(transaction: Any) -> None:
    async with transaction as work:
        await work.send("out", Message(body=b"never"))
        raise ZeroDivisionError


@run
@pytest.mark.promise("B5")
async def test_transactions(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        await client.create_queue("out")
        await client.send_batch("q", [Message(body=b"%d" % at) for at in range(4)])
        async with client.receiver("q") as receiver:
            zero, one, two, three = await receiver.receive(4)
            async with client.transaction() as work:
                await work.send("out", Message(body=b"result"))
                await work.complete(receiver, zero)
                await work.abandon("q", one)
                await work.defer("q", two)
                await work.dead_letter(receiver, three, reason="bad")
            with pytest.raises(InvalidOperation):
                await work.commit()
            assert bodies(await client.peek("out")) == [b"result"]
            assert [one.state for one in await client.peek("q")] == ["active", "deferred"]
            [again] = await receiver.receive()
            with pytest.raises(ZeroDivisionError):
                await _fail_inside(client.transaction())
            failing = client.transaction()
            await failing.send("out", Message(body=b"never"))
            await failing.complete("q", zero)
            with pytest.raises(LockLost):
                await failing.commit()
            rolled_back = client.transaction()
            await rolled_back.send_batch("out", [Message(body=b"never")])
            await rolled_back.rollback()
            assert bodies(await client.peek("out")) == [b"result"]
            await receiver.complete(again)


@run
@pytest.mark.promise("R2", "R3", "R4", "X7")
async def test_the_log_its_readers_and_replay(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", retention_ms=3_600_000)
        reader = await client.create_reader("q", "nightly", idle_ms=86_400_000)
        await client.send_batch("q", [Message(body=b"%d" % at) for at in range(10)])
        taker = client.receiver("q", delete=True)
        await taker.receive(10)
        positions = await client.log_positions("q")
        assert (positions.earliest, positions.latest) == ((1,), (11,))
        assert (await client.log_positions("q", since_ms=1)).since == (1,)
        assert await client.log_reach("q", 0, 4, 1) == 5
        found = [
            number
            async for batch in client.read_log("q", 0, 1, columns=["sequence_number"], limit=7)
            for number in batch.column("sequence_number").to_pylist()
        ]
        assert found == [1, 2, 3, 4, 5, 6, 7]
        outcomes = await client.read_outcomes("q", 0, 1)
        assert outcomes.column("outcome").to_pylist() == ["completed"] * 10
        await client.move_reader("q", "nightly", [5], reader.incarnation)
        [listed] = await client.readers("q")
        assert (listed.name, listed.positions, listed.lag) == ("nightly", (5,), (6,))
        taken = await client.take_reader("q", "nightly", token="t", address="/lake", idle_ms=9_000)
        assert (taken.address, taken.idle_ms) == ("/lake", 9_000)
        with pytest.raises(ReaderTaken, match="belongs to /lake"):
            await client.move_reader("q", "nightly", [6], reader.incarnation)
        await client.move_reader("q", "nightly", [6], reader.incarnation, "t")
        await client.delete_reader("q", "nightly")
        assert await client.readers("q") == []
        fenced = await client.create_reader("q", "fenced", token="t", address="here")
        assert fenced.address == "here"
        with pytest.raises(ReaderTaken):
            await client.take_reader("q", "fenced", token="u", held=["v"])
        await client.take_reader("q", "fenced", token="u", held=["v", "t"])
        assert await client.replay("q", 0, 9) == 2
        assert bodies(await client.peek("q")) == [b"8", b"9"]


@run
@pytest.mark.promise("R5", "R7")
async def test_claims(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        assert await client.claim("q", "job", 10) is None
        await client.send_batch("q", [Message(body=b"%d" % at) for at in range(6)])
        first = await client.claim("q", "job", 4)
        second = await client.claim("q", "job", 10, lease_ms=60_000)
        assert (first.count, second.count) == (4, 2)
        assert [one.number for one in await client.claims("q")] == [first.number, second.number]
        read = await client.read_claim("q", "job", first.number)
        assert bodies(read) == [b"0", b"1", b"2", b"3"]
        rows = await client.read_claim_arrow("q", "job", first.number)
        assert rows.column("body").to_pylist() == bodies(read)
        dead = {read[0].sequence_number: ("bad", None)}
        await client.commit_claim("q", "job", first.number, dead_letters=dead)
        await client.commit_claim("q", "job", first.number, dead_letters=dead)
        await client.release_claim("q", "job", second.number)
        assert bodies(await client.peek("q")) == [b"4", b"5"]
        assert bodies(await client.peek("q", dead_letters=True)) == [b"0"]


@run
@pytest.mark.promise("R6")
async def test_staged_sends(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        whose = {"producer": "job", "batch": 1, "attempt": 0}
        await client.stage("q", [Message(body=b"a")], task=0, **whose)
        await client.stage_arrow("q", pa.table({"body": [b"b"]}), task=1, **whose)
        assert [one.task for one in await client.staged("q")] == [0, 1]
        assert await client.peek("q") == []
        named = [(0, 0), (1, 0)]
        done = await client.publish("q", producer="job", batch=1, attempts=named)
        again = await client.publish("q", producer="job", batch=1, attempts=named)
        assert (done.accepted, done.again, again.again) == (2, False, True)
        await client.stage("q", [Message()], producer="job", batch=2, task=0, attempt=0)
        assert await client.discard("q", producer="job") == 1
        assert bodies(await client.peek("q")) == [b"a", b"b"]


@run
@pytest.mark.promise("R6")
async def test_producers(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q")
        mine = {"producer": "job/1", "batch": 0, "attempts": []}
        await client.publish("q", **mine, checkpoint="a")
        with pytest.raises(CheckpointMismatch):
            await client.publish("q", **mine, checkpoint="b")
        (known,) = await client.producers("q")
        assert (known.producer, known.batch, known.checkpoint) == ("job/1", 0, "a")
        assert await client.forget_producer("q", "job/1")
        assert not await client.forget_producer("q", "job/1")
        assert await client.producers("q") == []


@pytest.mark.parametrize("blocking", [False, True])
def test_keys(server: ServerThread, blocking: bool) -> None:
    @run
    async def test() -> None:
        async with Awaited(server.client()) if blocking else server.async_client() as client:
            await client.create_queue("orders")
            [root] = await client.keys()
            made = await client.create_key("worker", ["Send", "Listen"], entity="orders")
            assert made.primary not in repr(made)
            rotated = await client.rotate_key("worker", "secondary", entity="orders")
            assert (rotated.primary, rotated.rights) == (made.primary, made.rights)
            assert rotated.secondary != made.secondary
            [_, listed] = await client.keys()
            assert (listed.name, listed.entity) == ("worker", "orders")
            assert listed.rights == ["Send", "Listen"]
            with pytest.raises(KeyExists):
                await client.create_key("worker", ["Send"], entity="orders")
            await client.delete_key("worker", entity="orders")
            with pytest.raises(KeyNotFound):
                await client.delete_key("worker", entity="orders")
            assert await client.keys() == [root]

    test()


@run
async def test_a_bus_in_this_process_asks_nobody_for_a_key() -> None:
    async with Bus.ephemeral() as bus, AsyncClient.on(bus) as client:
        with pytest.raises(InvalidOperation, match="it has no keys"):
            await client.create_key("worker", ["Send"])
