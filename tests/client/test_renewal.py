"""Locks are renewed while their messages are being processed, and not for ever."""

from __future__ import annotations

import asyncio
import time

import pytest

from onibus import Message
from onibus.client.held import HeldLocks
from onibus.core.errors import BusClosed, LockLost
from tests.bus_helpers import run
from tests.client.conftest import Open
from tests.client.server_helpers import ServerThread


@run
@pytest.mark.promise("B1")
async def test_a_message_is_held_for_as_long_as_it_takes(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", lock_duration_ms=1_000)
        await client.send("q", Message(body=b"slow"))
        async with client.receiver("q") as receiver:
            async for message in receiver:
                await asyncio.sleep(2.2)
                assert await client.receiver("q").receive() == []
                await receiver.complete(message)
                break
        assert (await client.queue("q")).active_count == 0


@run
async def test_a_lock_that_nobody_renews_ends(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", lock_duration_ms=1_000)
        await client.send("q", Message(body=b"slow"))
        async with client.receiver("q", renew_ms=0) as receiver:
            [message] = await receiver.receive()
            await asyncio.sleep(1.3)
            with pytest.raises(LockLost):
                await receiver.complete(message)
        async with client.receiver("q") as receiver:
            [again] = await receiver.receive()
            assert again.delivery_count == 1
        # Whoever has closed the receiver holds nothing any more.
        await asyncio.sleep(1.3)
        [last] = await client.peek("q")
        assert last.state == "active"


def test_a_client_that_is_closed_before_its_receivers_lets_them_end(server: ServerThread) -> None:
    """Their locks are renewed no more; that is told to nobody, and is no fault either."""
    with server.client() as client:
        client.create_queue("q", lock_duration_ms=1_000)
        client.send("q", Message(body=b"left behind"))
        receiver = client.receiver("q")
        [message] = receiver.receive()
    with pytest.raises(BusClosed):
        receiver.complete(message)
    renewals = receiver._renewals
    renewals.add(b"left behind", None)
    renewals.start()
    deadline = time.monotonic() + 10
    while renewals._thread is not None:
        assert time.monotonic() < deadline, "nothing is left to renew, and it goes on"
        time.sleep(0.05)


@run
@pytest.mark.promise("B4")
async def test_a_session_is_held_for_as_long_as_it_takes(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_session=True, lock_duration_ms=1_000)
        await client.send("q", Message(body=b"slow", session_id="s"))
        async with await client.accept_session("q") as held:
            [message] = await held.receive()
            await asyncio.sleep(2.2)
            await held.complete(message)


def test_a_settled_message_is_not_renewed(server: ServerThread) -> None:
    with server.client() as client:
        client.create_queue("q", lock_duration_ms=1_000)
        client.send_batch("q", [Message(body=b"a"), Message(body=b"b")])
        with client.receiver("q") as receiver:
            first, second = receiver.receive(2)
            receiver.complete(first)
            receiver.abandon(second, delay_ms=60_000)
            time.sleep(1.3)
        [waiting] = client.peek("q")
        assert (waiting.body, waiting.delivery_count) == (b"b", 1)


def test_locks_are_left_alone_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0])
    locks = HeldLocks(renew_ms=60_000)
    locks.add(b"t", 130_000)
    assert locks.due() == []
    # Half of thirty seconds are left at fifteen; other clocks may differ, so ten.
    assert locks.next_s() == 10.0
    now[0] = 110.0
    [lock] = locks.due()
    locks.renewed(lock, 114_000)
    assert locks.next_s() == 2.0
    now[0] = 160.0
    assert (locks.due(), len(locks)) == ([], 0)
