"""Locks are renewed while their messages are being processed, and not for ever."""

from __future__ import annotations

import time
from typing import Any

import pytest

from onibus import Message
from onibus.client import held
from onibus.client.held import HeldLocks, Lock
from onibus.core.errors import BusClosed, LockLost
from tests.bus_helpers import MINUTE, run, until
from tests.client.conftest import Open
from tests.client.server_helpers import ServerThread
from tests.server.processes import wait_for

LOCK_MS = 5 * MINUTE


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Have clients renew many times per second; return a list of the tokens they renewed."""
    monkeypatch.setattr(held, "_SOONEST_S", 0.01)
    monkeypatch.setattr(held, "_LATEST_S", 0.01)
    done: list[bytes] = []
    renewed = HeldLocks.renewed

    def note(self: HeldLocks, lock: Lock, locked_until_ms: int | None) -> None:
        renewed(self, lock, locked_until_ms)
        if locked_until_ms is not None:
            done.append(lock.token)

    monkeypatch.setattr(HeldLocks, "renewed", note)
    return done


async def pass_two_locks(client: Any, renewals: list[bytes]) -> None:
    """Let twice the duration of a lock pass, with renewals all the time."""
    for _ in range(3):
        await client.advance(LOCK_MS * 2 // 3)
        renewals.clear()
        # One of the two began after the clock moved.
        await until(lambda: len(renewals) >= 2)


@run
@pytest.mark.promise("B1")
async def test_a_message_is_held_for_as_long_as_it_takes(
    connect: Open, renewals: list[bytes]
) -> None:
    async with connect() as client:
        await client.create_queue("q", lock_duration_ms=LOCK_MS)
        await client.send("q", Message(body=b"slow"))
        async with client.receiver("q") as receiver:
            async for message in receiver:
                await pass_two_locks(client, renewals)
                assert await client.receiver("q").receive() == []
                await receiver.complete(message)
                break
        assert (await client.queue("q")).active_count == 0


@run
async def test_a_lock_that_nobody_renews_ends(connect: Open) -> None:
    async with connect() as client:
        await client.create_queue("q", lock_duration_ms=LOCK_MS)
        await client.send("q", Message(body=b"slow"))
        async with client.receiver("q", renew_ms=0) as receiver:
            [message] = await receiver.receive()
            await client.advance(LOCK_MS)
            with pytest.raises(LockLost):
                await receiver.complete(message)
        async with client.receiver("q") as receiver:
            [again] = await receiver.receive()
            assert again.delivery_count == 1
        # A closed receiver holds no lock.
        await client.advance(LOCK_MS)
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
    wait_for(lambda: renewals._thread is None)


@run
@pytest.mark.promise("B4")
async def test_a_session_is_held_for_as_long_as_it_takes(
    connect: Open, renewals: list[bytes]
) -> None:
    async with connect() as client:
        await client.create_queue("q", requires_session=True, lock_duration_ms=LOCK_MS)
        await client.send("q", Message(body=b"slow", session_id="s"))
        async with await client.accept_session("q") as session:
            [message] = await session.receive()
            await pass_two_locks(client, renewals)
            await session.complete(message)


def test_a_settled_message_is_not_renewed(server: ServerThread, renewals: list[bytes]) -> None:
    with server.client() as client:
        client.create_queue("q", lock_duration_ms=LOCK_MS)
        client.send_batch("q", [Message(body=b"a"), Message(body=b"b"), Message(body=b"c")])
        with client.receiver("q") as receiver:
            first, second, third = receiver.receive(3)
            assert third.token is not None
            receiver.complete(first)
            receiver.abandon(second, delay_ms=60_000)
            renewals.clear()
            # A renewal of the others may be on its way; the next round renews the third alone.
            wait_for(lambda: renewals.count(third.token or b"") >= 3)
            assert set(renewals[renewals.index(third.token) + 1 :]) == {third.token}
            receiver.complete(third)
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
