"""What comes due, or expires, in masses is done in slices; what it costs is counted, not timed."""

from __future__ import annotations

import pytest

from onibus.core.lifecycle import State
from onibus.core.marks import Marks
from onibus.core.path.expire import DUE_A_SLICE, ROWS_A_SLICE, pass_time
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
def test_what_expires_in_masses_does_in_slices() -> None:
    bench = Bench()
    a_block = ROWS_A_SLICE // 2
    for _ in range(2 * SLICES):
        bench.send(*[b"x"] * a_block, time_to_live_ms=LATER)
    bench.now += LATER
    for done in range(1, SLICES + 1):
        assert bench.partition.next_wake() <= bench.now, "there is more to do"
        pass_slice(bench)
        assert bench.partition.subscription.gone.count == done * ROWS_A_SLICE
    assert bench.partition.next_wake() > bench.now
