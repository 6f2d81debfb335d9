"""Non-exclusive sessions in the bus itself: their holder, restarts and crashes (B9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.commands import ListSessionStates
from onibus.core.errors import InvalidArgument, SessionLocked, SessionLockLost
from onibus.receiver import SessionReceiver
from tests.bus_helpers import (
    MINUTE,
    Disks,
    ManualClock,
    bodies,
    crash,
    pass_ms,
    run,
    send,
    settle,
)

SETTINGS = {"requires_session": True, "lock_duration_ms": MINUTE}


async def shared(bus: Bus) -> SessionReceiver:
    """Accept a session of four messages non-exclusively, and receive two."""
    await bus.create_queue("q", **SETTINGS)
    await send(bus, "q", *"1234", session_id="s")
    receiver = await bus.accept_session("q", "s", exclusive=False, owner="first")
    assert bodies(await receiver.receive(2)) == ["1", "2"]
    return receiver


async def taken_over(bus: Bus, token: bytes | None) -> SessionReceiver:
    return await bus.accept_session("q", "s", exclusive=False, lock_token=token, owner="second")


@pytest.mark.promise("B9")
@run
async def test_only_the_holder_receives_settles_and_closes(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        first = await shared(bus)
        [third] = await first.receive(1)
        second = await taken_over(bus, first.lock_token)
        assert second.lock_token == first.lock_token
        for refused in (
            lambda: first.receive(1),
            first.renew_lock,
            first.get_state,
            lambda: first.set_state(b"x"),
            lambda: first.complete(third),
            lambda: first.abandon(third),
            lambda: first.defer(third),
            lambda: first.dead_letter(third),
            first.close,
        ):
            with pytest.raises(SessionLockLost):
                await refused()
        async with bus.transaction() as transaction:
            with pytest.raises(SessionLockLost):
                await transaction.complete(first, third)
            await transaction.complete(second, third)
        assert bodies(await second.receive(5)) == ["4"]
        # A holder that lost it takes it back by the same token.
        again = await taken_over(bus, first.lock_token)
        with pytest.raises(SessionLockLost):
            await second.close()
        await again.close()
        assert [one.held_count for one in bus.sessions("q")] == [0]


@pytest.mark.promise("B9", "B5")
@run
async def test_a_transaction_commits_only_while_its_receiver_holds_the_session(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        first = await shared(bus)
        [third] = await first.receive(1)
        transaction = bus.transaction()
        await transaction.complete(first, third)
        second = await taken_over(bus, first.lock_token)
        with pytest.raises(SessionLockLost):
            await transaction.commit()
        await transaction.rollback()
        await second.complete(third)


@pytest.mark.promise("B9", "B8")
@run
async def test_a_clean_stop_keeps_the_lock_and_its_token(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        first = await shared(bus)
        exclusive = await bus.accept_session("q", "other")
        assert exclusive.lock_token is None
    async with Bus.open(tmp_path, clock=clock) as bus:
        with pytest.raises(SessionLocked):
            await taken_over(bus, b"x" * 16)
        with pytest.raises(SessionLocked):
            await bus.accept_session("q", "other", exclusive=False, lock_token=first.lock_token)
        second = await taken_over(bus, first.lock_token)
        # What the first receiver got before the stop is held still, and is settled by the second.
        assert bodies(await second.receive(5)) == ["3", "4"]
        assert [one.held_count for one in bus.sessions("q")] == [0, 4]
        await second.close()
        assert [one.delivery_count for one in bus.peek("q")] == [0] * 4


@pytest.mark.promise("B9")
@run
async def test_a_crash_right_after_a_takeover_does_not_undo_it(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        first = await shared(bus)
        held = first.session
        await settle(bus)
        second = await taken_over(bus, first.lock_token)
        copy = disks.copy()
        crash(bus)
    assert held is not None
    async with copy.bus(clock) as bus:
        [session] = bus.sessions("q")
        assert (session.lock_holder, session.held_count) == ("second", 2)
        third = await taken_over(bus, second.lock_token)
        assert bodies(await third.receive(5)) == ["3", "4"]


@pytest.mark.promise("B9")
@run
async def test_the_token_of_a_lock_that_expired_or_was_closed_takes_nothing(
    clock: ManualClock,
) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        first = await shared(bus)
        await pass_ms(bus, clock, MINUTE)
        with pytest.raises(SessionLockLost, match="accept it without a lock token"):
            await taken_over(bus, first.lock_token)
        async with await bus.accept_session("q", "s", exclusive=False) as second:
            assert second.lock_token != first.lock_token
            assert [one.delivery_count for one in await second.receive(5)] == [1, 1, 0, 0]
            with pytest.raises(SessionLocked):
                await taken_over(bus, first.lock_token)
        with pytest.raises(SessionLockLost):
            await taken_over(bus, second.lock_token)


@pytest.mark.promise("B9")
@run
async def test_arguments_that_contradict_each_other_are_rejected() -> None:
    async with Bus.ephemeral() as bus:
        first = await shared(bus)
        with pytest.raises(InvalidArgument):
            await bus.accept_session("q", "s", lock_token=first.lock_token)
        with pytest.raises(InvalidArgument):
            await bus.accept_session("q", exclusive=False, lock_token=first.lock_token)
        with pytest.raises(InvalidArgument):
            await taken_over(bus, "text")  # type: ignore[arg-type]
        assert bodies(await first.receive(5)) == ["3", "4"]


@pytest.mark.promise("B4")
@run
async def test_when_a_state_was_set_outlives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q", **SETTINGS)
        async with await bus.accept_session("q", "old") as receiver:
            await receiver.set_state(b"1")
        await pass_ms(bus, clock, MINUTE)
        since = clock.wall()
        async with await bus.accept_session("q", "new") as receiver:
            await receiver.set_state(b"2")
    async with Bus.open(tmp_path, clock=clock) as bus:
        entity = bus.broker.find("q")
        command = ListSessionStates(entity.number, since)
        assert bus.broker.use(entity, entity.partitions[0], command) == ["new"]
