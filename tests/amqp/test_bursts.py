"""Single messages that arrive together are stored in one go, and each is answered for itself."""

from __future__ import annotations

import asyncio

import pytest

from onibus import Bus
from onibus.core.message import ReceivedMessage
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from onibus.protocols.amqp.frames import frame
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.incoming import BATCH_FORMAT, PARTITION_KEY
from tests.amqp.peer import Peer, greeted
from tests.amqp.raw_client import message, transfer
from tests.bus_helpers import run


def burst(*payloads: bytes, first: int = 0) -> bytes:
    """Return transfers of messages, one after the other."""
    return b"".join(
        frame(0, transfer(0, first + at, payload)) for at, payload in enumerate(payloads)
    )


def batch(*payloads: bytes) -> bytes:
    return b"".join(sections.data_section(payload) for payload in payloads)


async def outcomes(peer: Peer, count: int) -> dict[int, str]:
    """Wait until so many deliveries are settled; return how, or for which condition not."""
    found: dict[int, str] = {}
    while len(found) < count:
        for one in await peer.hear(say.DISPOSITION):
            _, first, last, settled, state = one.fields[:5]
            assert settled
            error = state.value[0] if state.descriptor == say.REJECTED else None
            told = "accepted" if error is None else str(error.value[0])
            for delivery_id in range(first, last + 1):
                assert delivery_id not in found
                found[delivery_id] = told
    return found


def waiting(bus: Bus) -> list[ReceivedMessage]:
    """Return what is in the queue, in its order."""
    found: list[ReceivedMessage] = []
    while some := bus.peek("q", start=found[-1].sequence_number + 1 if found else 0):
        found += some
    return found


def bodies(bus: Bus) -> list[bytes]:
    return [one.body for one in waiting(bus)]


@run
async def test_one_that_is_refused_takes_no_other_with_it() -> None:
    async with greeted(requires_duplicate_detection=True) as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(
            burst(
                message(b"a", "1"),
                message(b"b", "x" * 200),
                message(b"c", "1"),
                b"no message at all",
                message(b"d", "2"),
            )
        )
        told = await outcomes(peer, 5)
        assert [told[at] for at in (0, 2, 4)] == ["accepted"] * 3
        assert "accepted" not in (told[1], told[3])
        assert bodies(bus) == [b"a", b"d"]
        assert peer.connection.held_bytes == peer.connection.under_way == 0


@run
async def test_what_does_not_fit_any_more_is_refused_from_there_on() -> None:
    async with greeted(max_size_bytes=1 << 20) as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(burst(*[message(b"%d" % at + b"x" * 100_000) for at in range(12)]))
        told = await outcomes(peer, 12)
        taken = [at for at in range(12) if told[at] == "accepted"]
        assert taken == list(range(len(taken)))
        assert 0 < len(taken) < 12
        assert {told[at] for at in range(len(taken), 12)} == {RESOURCE_LIMIT_EXCEEDED}
        assert len(bodies(bus)) == len(taken)


@run
async def test_singles_and_batches_of_one_link_stay_in_their_order() -> None:
    async with greeted() as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        together = batch(message(b"c"), message(b"d"))
        peer.feed(
            burst(message(b"a"), message(b"b"))
            + frame(0, transfer(0, 2, together, message_format=BATCH_FORMAT))
            + burst(message(b"e"), first=3)
        )
        assert set((await outcomes(peer, 4)).values()) == {"accepted"}
        assert bodies(bus) == [b"a", b"b", b"c", b"d", b"e"]


def _keyed(body: bytes, key: str) -> bytes:
    given = to.fields({PARTITION_KEY: to.string(key)})
    return sections.section(sections.ANNOTATIONS, given) + message(body)


@pytest.mark.promise("S2", "P4")
@run
async def test_singles_stay_before_a_batch_that_goes_to_several_partitions() -> None:
    async with greeted(enable_partitioning=True) as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        together = batch(_keyed(b"3", "a"), _keyed(b"x", "b"), _keyed(b"y", "c"))
        peer.feed(
            burst(_keyed(b"1", "a"), _keyed(b"2", "a"))
            + frame(0, transfer(0, 2, together, message_format=BATCH_FORMAT))
            + burst(_keyed(b"4", "a"), first=3)
        )
        assert set((await outcomes(peer, 4)).values()) == {"accepted"}
        found = [one.body for one in waiting(bus) if one.message.partition_key == "a"]
        assert found == [b"1", b"2", b"3", b"4"]


@pytest.mark.promise("S2", "B5")
@run
async def test_singles_stay_before_a_transaction_that_came_after_them() -> None:
    async with greeted() as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        name = await peer.declare(1)
        state = say.performative(say.TRANSACTIONAL, [name, to.NULL])
        discharge = say.performative(say.DISCHARGE, [name, to.boolean(False)])
        peer.feed(
            burst(message(b"1"), message(b"2"), first=10)
            + frame(0, transfer(0, 12, message(b"3"), state=state))
            + frame(0, transfer(1, 13, sections.section(sections.VALUE, discharge)))
        )
        await outcomes(peer, 4)
        assert bodies(bus) == [b"1", b"2", b"3"]


@run
async def test_a_burst_is_dealt_over_the_partitions() -> None:
    async with greeted(enable_partitioning=True) as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(burst(*[message(b"%d" % at) for at in range(32)]))
        assert set((await outcomes(peer, 32)).values()) == {"accepted"}
        found = waiting(bus)
        assert sorted(int(one.body) for one in found) == list(range(32))
        by_partition = [one.sequence_number >> 48 for one in found]
        assert sorted(by_partition) == sorted([*range(16), *range(16)])


@run
async def test_a_client_that_leaves_right_after_it_has_sent_has_sent() -> None:
    async with greeted() as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(burst(message(b"a")) + frame(0, say.detach(0, None)))
        assert await outcomes(peer, 1) == {0: "accepted"}
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(burst(message(b"b"), first=1) + frame(0, say.close(None)))
        while len(bodies(bus)) < 2:
            peer.heard()
            await asyncio.sleep(0)
        assert bodies(bus) == [b"a", b"b"]


@run
async def test_who_does_not_ask_is_not_told() -> None:
    async with greeted() as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(
            frame(0, transfer(0, 0, message(b"a"), settled=True))
            + burst(message(b"b"), first=1)
            + frame(0, transfer(0, 2, message(b"c"), settled=True))
        )
        assert await outcomes(peer, 1) == {1: "accepted"}
        assert bodies(bus) == [b"a", b"b", b"c"]
        assert all(one.code != say.DISPOSITION for one in peer.heard())


@run
async def test_a_queue_that_is_gone_refuses_all_of_a_burst() -> None:
    async with greeted() as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        await bus.delete_queue("q")
        peer.feed(burst(message(b"a"), message(b"b")))
        told = await outcomes(peer, 2)
        assert set(told.values()) == {"amqp:not-found"}
        assert peer.connection.held_bytes == peer.connection.under_way == 0


@run
async def test_deliveries_with_the_same_id_are_answered_once_more() -> None:
    """Nobody may give two deliveries one id; who does is told of the id."""
    async with greeted() as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(burst(message(b"a")) + burst(message(b"b")))
        told = (await peer.hear(say.DISPOSITION))[0]
        assert told.fields[1:3] == [0, 0]
        assert told.fields[4].descriptor == say.ACCEPTED
        assert bodies(bus) == [b"a", b"b"]
