"""What comes due, or expires, in masses is done in slices; what it costs is counted, not timed."""

from __future__ import annotations

import pytest

from onibus.core.commands import AcceptSession, Delete, HeldSession, Receive, Renew
from onibus.core.errors import LockLost, SessionLocked, SessionLockLost
from onibus.core.invariants import violations
from onibus.core.lifecycle import State
from onibus.core.limits import RECEIVED_MAX
from onibus.core.marks import Marks
from onibus.core.message import Message, ReceivedMessage
from onibus.core.path import expire
from onibus.core.path.expire import DUE_A_SLICE, LOCKS_A_SLICE, LOOKS_A_SLICE, pass_time
from onibus.core.path.receive import EXPIRED_MAX
from tests.core.partition_helpers import Bench

LATER = 60_000
SLICES = 4


def pass_slice(bench: Bench) -> None:
    """Do what a partition does at one moment."""
    pass_time(bench.partition, bench.now, bench.now, bench.out)
    bench.commit()


def schedule(bench: Bench, count: int) -> None:
    """Schedule messages for one moment; their bodies tell their order."""
    due = bench.now + LATER
    bench.send(*[b"%d" % n for n in range(count)], scheduled_enqueue_time_ms=due)


def scheduled(bench: Bench) -> int:
    return bench.partition.subscription.counts[State.SCHEDULED]


def receive_all(bench: Bench, session: HeldSession | None = None) -> list[ReceivedMessage]:
    """Receive what there is, as much at once as a receive returns."""
    found: list[ReceivedMessage] = []
    while some := bench.apply(Receive(0, 10_000, session=session)).messages:
        assert len(some) <= RECEIVED_MAX
        found += some
        bench.commit()
    return found


@pytest.mark.parametrize("restart", [False, True])
def test_each_slice_takes_no_more_than_it_activates(
    restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    schedule(bench, SLICES * DUE_A_SLICE)
    if restart:
        bench.restart()
    taken = []
    pop_scheduled = Marks.pop_scheduled

    def counted(self: Marks, moment: int) -> int | None:
        taken.append(moment)
        return pop_scheduled(self, moment)

    monkeypatch.setattr(Marks, "pop_scheduled", counted)
    bench.now += LATER
    for left in range(SLICES - 1, -1, -1):
        assert bench.partition.next_wake() <= bench.now, "there is more to do"
        pass_slice(bench)
        assert scheduled(bench) == left * DUE_A_SLICE
    assert len(taken) == SLICES * DUE_A_SLICE
    assert bench.partition.next_wake() > bench.now


@pytest.mark.promise("S6")
def test_slices_keep_the_order_of_numbers_also_of_those_that_were_looked_at() -> None:
    bench = Bench()
    count = SLICES * DUE_A_SLICE
    schedule(bench, count)
    bench.restart()
    for ordinal in range(count, 0, -7):
        bench.partition.subscription.view(ordinal)
    bench.now += LATER
    while bench.partition.next_wake() <= bench.now:
        pass_slice(bench)
    received = bench.receive(count)
    assert [int(message.message.body) for message in received] == list(range(count))


@pytest.mark.promise("B1")
def test_locks_end_in_time_while_many_come_due() -> None:
    bench = Bench(lock_duration_ms=LATER + 1)
    bench.send(b"held")
    schedule(bench, 2 * DUE_A_SLICE)
    bench.receive()
    bench.now += LATER + 1
    pass_slice(bench)
    assert scheduled(bench) == DUE_A_SLICE
    assert bench.partition.subscription.counts[State.LOCKED] == 0


@pytest.mark.promise("B2")
@pytest.mark.parametrize("blocks", [1, 2 * SLICES])
def test_what_expires_in_masses_does_in_slices(blocks: int) -> None:
    bench = Bench()
    for _ in range(blocks):
        bench.send(*[b"x"] * (SLICES * LOOKS_A_SLICE // blocks), time_to_live_ms=LATER)
    bench.send(b"young", time_to_live_ms=2 * LATER)
    bench.now += LATER
    for done in range(1, SLICES + 1):
        assert bench.partition.next_wake() <= bench.now, "there is more to do"
        assert violations(bench.partition) == []
        pass_slice(bench)
        assert bench.partition.subscription.gone.count == done * LOOKS_A_SLICE
    assert bench.partition.next_wake() > bench.now
    assert [one.body for one in bench.receive(2)] == [b"young"]


@pytest.mark.promise("B2")
@pytest.mark.parametrize("session_id", [None, "s"])
def test_a_receive_deletes_a_slice_of_expired_messages_and_returns_none(
    session_id: str | None,
) -> None:
    bench = Bench(requires_session=session_id is not None)
    bench.send(*[b"x"] * 2 * EXPIRED_MAX, time_to_live_ms=LATER, session_id=session_id)
    bench.send(b"young", session_id=session_id)
    subscription, session = bench.partition.subscription, None
    if session_id is not None:
        accepted = bench.apply(AcceptSession(0, "s"))
        assert accepted is not None
        session = HeldSession("s", accepted.token)
    bench.now += LATER
    found = []
    for done in (1, 2, 2):
        found += bench.apply(Receive(0, 10_000, session=session)).messages
        assert subscription.gone.count == done * EXPIRED_MAX
    assert [one.body for one in found] == [b"young"]


@pytest.mark.promise("B2")
def test_rows_that_expire_while_a_block_is_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expire, "LOOKS_A_SLICE", 2)
    bench = Bench()
    lives = [LATER + 10 * (at % 3) for at in range(9)]
    batch = [Message(body=b"%d" % at, time_to_live_ms=one) for at, one in enumerate(lives)]
    bench.send_all(batch)
    bench.now += LATER
    for _ in range(20):
        if bench.partition.next_wake() <= bench.now:
            pass_slice(bench)
        bench.now += 5
        assert violations(bench.partition) == []
    assert bench.partition.subscription.gone.count == 9


@pytest.mark.promise("B1", "B8")
def test_locks_that_expire_in_masses_end_in_slices_and_settle_nothing() -> None:
    bench = Bench(lock_duration_ms=LATER)
    count = SLICES * LOCKS_A_SLICE
    bench.send(*[b"%d" % at for at in range(count)])
    held = receive_all(bench)
    bench.now += LATER
    subscription = bench.partition.subscription
    for done in range(1, SLICES + 1):
        assert bench.partition.next_wake() <= bench.now, "there is more to do"
        pass_slice(bench)
        assert subscription.counts[State.LOCKED] == count - done * LOCKS_A_SLICE
        for message in (held[0], held[-1]):
            assert message.token is not None
            with pytest.raises(LockLost):
                bench.complete(message)
            with pytest.raises(LockLost):
                bench.apply(Renew(0, [message.token], atomic=True))
    assert bench.partition.next_wake() > bench.now
    again = receive_all(bench)
    assert [int(one.body) for one in again] == list(range(count))
    assert {one.delivery_count for one in again} == {1}
    bench.complete(*again)


@pytest.mark.promise("B1")
def test_a_late_deletion_of_a_message_whose_lock_ends_in_a_later_slice() -> None:
    bench = Bench(lock_duration_ms=LATER)
    bench.send(*[b"x"] * (LOCKS_A_SLICE + 1))
    *_, last = bench.receive(LOCKS_A_SLICE + 1)
    bench.now += LATER
    pass_slice(bench)
    subscription = bench.partition.subscription
    assert subscription.counts[State.LOCKED] == 1
    assert last.token is not None
    assert bench.apply(Delete(0, [last.token])) == [None]
    bench.commit()
    assert bench.partition.next_wake() > bench.now
    assert len(bench.receive(LOCKS_A_SLICE + 1)) == LOCKS_A_SLICE


@pytest.mark.promise("B4")
def test_a_session_lock_that_expires_with_many_messages() -> None:
    bench = Bench(lock_duration_ms=LATER, requires_session=True)
    count = 2 * LOCKS_A_SLICE
    bench.send(*[b"%d" % at for at in range(count)], session_id="s")
    subscription = bench.partition.subscription

    def accept(name: str | None) -> HeldSession | None:
        accepted = bench.apply(AcceptSession(0, name))
        return None if accepted is None else HeldSession("s", accepted.token)

    session = accept("s")
    held = receive_all(bench, session)
    assert len(held) == count
    bench.now += LATER
    pass_slice(bench)
    assert subscription.counts[State.LOCKED] == count - LOCKS_A_SLICE
    with pytest.raises(SessionLockLost):
        bench.apply(Receive(0, 1, session=session))
    with pytest.raises(SessionLockLost):
        bench.complete(held[-1])
    with pytest.raises(SessionLocked):
        accept("s")
    assert accept(None) is None
    while bench.partition.next_wake() <= bench.now:
        pass_slice(bench)
    received = receive_all(bench, accept(None))
    assert [int(one.body) for one in received] == list(range(count))
