"""What a stop, a kill and a start do, through the SDK of JavaScript: restarts.mjs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onibus import Bus, Message
from tests.amqp.javascript.on_disk import Stage
from tests.amqp.javascript.playing import Player
from tests.bus_helpers import HOUR, KEYS, MINUTE, ManualClock
from tests.over_http.on_disk import Place, kill, stop
from tests.server.processes import Served
from tests.simulator.counters import set_counter

ENDS = pytest.mark.parametrize("end", [stop, kill])


@pytest.fixture
def stage(tmp_path: Path, player: Player, tls: tuple[Path, Path]) -> Stage:
    return Stage(tmp_path, player, tls)


@pytest.mark.promise("B8", "D5", "D8", "S3", "S7", "P4", "L1", "B4")
@ENDS
def test_everything_outlives_a_stop_and_a_kill(stage: Stage, end: Callable[[Served], None]) -> None:
    with stage.started():
        stage.play("restarts.everythingOutlives", end)


@pytest.mark.promise("B8", "B1", "B4")
def test_a_clean_stop_keeps_locks(stage: Stage) -> None:
    with stage.started():
        stage.play("restarts.aCleanStopKeepsLocks", stop)


@pytest.mark.promise("B8", "B1")
def test_after_a_kill_a_lock_may_end_early_and_nothing_else(stage: Stage) -> None:
    with stage.started():
        stage.play("restarts.afterAKillALockMayEndEarly", kill)


@pytest.mark.promise("S7", "S6")
def test_what_came_due_while_the_server_was_down_is_enqueued_at_start(stage: Stage) -> None:
    with stage.started():
        stage.play("restarts.whatCameDueMeanwhile", kill)


@pytest.mark.promise("P9", "B6", "B8")
def test_a_kill_does_not_forward_twice(stage: Stage) -> None:
    with stage.started():
        stage.play("restarts.forwardedOnceOverAKill", kill)


@pytest.mark.promise("S4")
def test_a_clock_that_was_set_back_does_not_take_time_back(stage: Stage) -> None:
    asyncio.run(_sent_an_hour_ahead(stage.place))
    with stage.started():
        stage.play("restarts.aClockThatWasSetBack")


async def _sent_an_hour_ahead(place: Place) -> None:
    ahead = ManualClock(time.time_ns() // 1_000_000 + HOUR)
    async with Bus.open(place.data, stores=place.stores, clock=ahead, reserve_bytes=0) as bus:
        await bus.create_queue("q", default_time_to_live_ms=10 * MINUTE)
        await bus.send("q", Message(body=b'"an hour ahead"'))


@pytest.mark.promise("S8")
def test_numbers_roll_over(stage: Stage) -> None:
    asyncio.run(_nearly_all_numbers_given(stage.place))
    with stage.started():
        stage.play("restarts.numbersRollOver", kill)


async def _nearly_all_numbers_given(place: Place) -> None:
    last = (1 << 48) - 1
    async with Bus.open(place.data, stores=place.stores, reserve_bytes=0) as bus:
        await bus.create_queue("q", enable_partitioning=True)
        set_counter(bus.broker, "q", last - 1, 3)
        await bus.send("q", Message(body=b"0", partition_key=KEYS[3]))
