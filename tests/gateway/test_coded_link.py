"""Commands and results are data: the bus works the same if they travel as bytes."""

from __future__ import annotations

import pytest

from onibus import Bus, Filter, Message
from onibus.core.errors import LockLost
from onibus.gateway.broker import Broker
from tests.bus_helpers import Disks, ManualClock, bodies, msg, run, send
from tests.coded_link import CodedShard


@pytest.fixture(autouse=True)
def _coded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "shard_type", CodedShard)


@run
async def test_messages_are_sent_received_and_settled(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", enable_partitioning=True, requires_duplicate_detection=True)
        sent = await bus.send_batch("q", [msg(f"{n}", message_id=f"{n}") for n in range(20)])
        assert (await bus.send("q", msg("again", message_id="3"))).duplicate_of is not None
        receiver = bus.receiver("q")
        received = await receiver.receive(20)
        await receiver.complete(*received[:5])
        with pytest.raises(LockLost):
            await receiver.complete(received[0])
        await receiver.abandon(received[5], properties={"seen": clock.wall()})
        await receiver.defer(received[6])
        await receiver.dead_letter(received[7], reason="why", description="so")
        assert await receiver.renew(received[8]) > clock.wall()
        (again,) = await receiver.receive_deferred([received[6].sequence_number])
        assert again.body == received[6].body
        (letter,) = bus.peek("q", dead_letters=True)
        assert (letter.dead_letter_reason, letter.dead_letter_description) == ("why", "so")
        assert len({one.sequence_number for one in sent}) == 20


@run
async def test_sessions_schedules_and_purges(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("s", requires_session=True)
        await send(bus, "s", "1", "2", session_id="a")
        async with await bus.accept_session("s", "a", owner="me") as session:
            await session.set_state(b"kept")
            assert await session.get_state() == b"kept"
            assert bodies(await session.receive(5)) == ["1", "2"]
            assert [one.session_id for one in bus.sessions("s")] == ["a"]
        number = await bus.schedule("s", msg("later", session_id="a"), clock.wall() + 60_000)
        await bus.cancel_scheduled("s", [number])
        assert await bus.purge("s", Filter(session_id="a", sql="n IS NULL")) == 2


@run
async def test_topics_transactions_and_moves_over_stores(clock: ManualClock) -> None:
    async with Disks().bus(clock, "a", "b") as bus:
        await bus.create_topic("t", enable_partitioning=True)
        await bus.create_subscription("t", "all")
        await bus.create_queue("q", forward_dead_letters_to="t")
        await send(bus, "q", "1", "2")
        async with bus.transaction() as tx:
            receiver = bus.receiver("q")
            (one,) = await receiver.receive(1)
            await tx.complete(receiver, one)
            await tx.send("t", Message(body=b"moved", partition_key="k"))
        (two,) = await receiver.receive(1)
        await receiver.dead_letter(two)
        found: list[str] = []
        while len(found) < 2:
            found += bodies(await bus.receiver("t/subscriptions/all").receive(10, wait_ms=1_000))
        assert sorted(found) == ["2", "moved"]


@run
async def test_claims_and_the_log(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", retention_ms=3_600_000)
        await send(bus, "q", "1", "2", "3")
        claim = await bus.claim("q", "reader", 2)
        assert claim is not None
        assert bodies(await bus.read_claim("q", "reader", claim.number)) == ["1", "2"]
        await bus.commit_claim("q", "reader", claim.number)
        batches = [one async for one in bus.read_log("q", 0, 1)]
        assert sum(batch.num_rows for batch in batches) == 3
        assert bodies(bus.peek("q")) == ["3"]
