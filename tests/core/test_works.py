"""Parts of works in one partition: what was found by the simulation stays mended."""

from __future__ import annotations

import pytest

from onibus.core.commands import Stage, Unstage
from onibus.core.lifecycle import State
from onibus.core.path.expire import pass_time
from onibus.core.staged import Change, Part
from tests.core.partition_helpers import Bench


@pytest.mark.promise("B2", "B5")
@pytest.mark.parametrize("late", [False, True])
def test_what_a_work_gives_back_expires_if_its_time_came_meanwhile(late: bool) -> None:
    bench = Bench()
    bench.send(b"short", time_to_live_ms=1_000)
    (held,) = bench.receive()
    part = Part(changes=[Change(0, 1, "complete")])
    bench.apply(Stage(7, part))
    bench.commit()
    subscription = bench.partition.subscription
    assert subscription.state(1) is State.LOCKED
    bench.now += 2_000 if late else 500
    pass_time(bench.partition, bench.now, bench.now, bench.out)
    assert subscription.state(1) is State.LOCKED, "what a work will change does not expire"
    bench.apply(Unstage(7, [0]))
    bench.commit()
    assert subscription.state(1) is (State.GONE if late else State.ACTIVE)
    assert held.delivery_count == 0


@pytest.mark.promise("R1", "B2")
def test_what_is_only_kept_to_be_read_is_not_looked_at_for_what_expires() -> None:
    bench = Bench(retention_ms=1_000_000)
    bench.send(b"read", time_to_live_ms=1_000)
    bench.complete(*bench.receive())
    bench.restart()
    assert len(bench.partition.log.places) == 1, "it is kept"
    assert bench.partition.next_wake() > bench.now + 1_000_000
    bench.send(b"alive", time_to_live_ms=1_000)
    bench.restart()
    assert bench.partition.next_wake() == bench.now + 1_000
