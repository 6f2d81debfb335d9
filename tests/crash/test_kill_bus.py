"""`kill -9` of a busy bus, again and again; the history that its clients wrote has no anomaly."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from tests.crash.progress import Progress
from tests.server.processes import PATIENCE_S
from tests.simulator.busy import QUEUE, SESSIONS, WINDOW_MS, be_busy
from tests.simulator.history import Checker, Event, decode, encode

#: Kills of one directory; four directories make 200.
KILLS = 50

# Processes are forked from one that has imported everything: starting takes no time.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.simulator.busy"])


def start(directory: Path, history: Path, seed: int, drain: bool = False) -> ForkServerProcess:
    """Start a busy process; return when its bus is open."""
    ready = CONTEXT.Event()
    arguments = (str(directory), str(history), seed, drain, ready.set)
    process = CONTEXT.Process(target=be_busy, args=arguments)
    process.start()
    assert ready.wait(PATIENCE_S)
    return process


def received(event: Event) -> bool:
    return event.kind == "receive" and event.number is not None


@pytest.mark.promise("B8", "S2", "S3", "S4", "S7", "D1", "D5", "P4", "B4")
@pytest.mark.parametrize("seed", range(4))
def test_kills_leave_no_anomaly(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    history = tmp_path / "history"
    progress = Progress(history, lambda event: "received" if received(event) else None)
    for kill in range(KILLS):
        process = start(tmp_path / "bus", history, kill + 1)
        progress.wait_until(kill + 2, "received")
        time.sleep(rng.random() * 0.12)
        process.kill()
        process.join()
        with history.open("ab") as file:
            # A line that the kill cut short ends here.
            file.write(b"\n" + encode(Event(phase="fault")))
    process = start(tmp_path / "bus", history, KILLS + 1, drain=True)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    events = decode(history.read_bytes().split(b"\n"))
    assert sum(event.phase == "fault" for event in events) == KILLS
    assert sum(received(event) for event in events) > KILLS
    checker = Checker(
        WINDOW_MS,
        partitioned=frozenset({QUEUE}),
        drained=frozenset({QUEUE, SESSIONS}),
        slack_ms=20,
    )
    anomalies = checker.check(events)
    assert not anomalies, anomalies[:10]
