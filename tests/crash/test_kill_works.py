"""`kill -9` amid transactions, forwarding and fan-out: nothing is half done, or done twice."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from tests.crash.progress import Progress
from tests.server.processes import PATIENCE_S
from tests.simulator.busy_works import (
    ALL,
    EVEN,
    FIRST,
    LEFT,
    MADE,
    RIGHT,
    be_busy_with_works,
    check_works,
)
from tests.simulator.history import OK, REFUSED, Event, decode

#: Kills of one directory; two directories make 80.
KILLS = 40
#: What a life must have done before it ends.
DONE = ("transfer", "chain", "news", "batch")

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.simulator.busy_works"])


def start(directory: Path, history: Path, seed: int, drain: bool = False) -> ForkServerProcess:
    """Start a busy process; return when its bus is open."""
    ready = CONTEXT.Event()
    arguments = (str(directory), str(history), seed, drain, ready.set)
    process = CONTEXT.Process(target=be_busy_with_works, args=arguments)
    process.start()
    assert ready.wait(PATIENCE_S)
    return process


@pytest.mark.promise("B5", "B6", "P9", "B3", "S2", "S3", "B8", "R6")
@pytest.mark.parametrize("seed", range(2))
def test_kills_leave_nothing_half_done(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    history = tmp_path / "history"
    progress = Progress(history, lambda event: event.kind if event.outcome == OK else None)
    for kill in range(KILLS):
        process = start(tmp_path / "bus", history, kill + 1)
        progress.wait_until(kill + 2, *DONE)
        time.sleep(rng.random() * 0.15)
        process.kill()
        process.join()
        with history.open("ab") as file:
            # A line that the kill cut short ends here.
            file.write(b"\n")
    process = start(tmp_path / "bus", history, KILLS + 1, drain=True)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    events = decode(history.read_bytes().split(b"\n"))
    for kind in DONE:
        assert sum(event.kind == kind and event.outcome == OK for event in events) > KILLS
    anomalies = check_works(events)
    assert not anomalies, anomalies[:10]


def asked(kind: str, body: str, outcome: str = OK) -> list[Event]:
    return [
        Event(phase="invoke", kind=kind, body=body),
        Event(phase="complete", kind=kind, body=body, outcome=outcome),
    ]


def there(entity: str, *bodies: str) -> list[Event]:
    return [
        Event(phase="complete", kind="there", entity=entity, body=body, number=number)
        for number, body in enumerate(bodies, 1)
    ]


@pytest.mark.parametrize(
    ("rule", "history"),
    [
        ("half done", [*asked("transfer", "1-1"), *there(LEFT, "1-1")]),
        ("lost", asked("transfer", "1-1")),
        ("ghost", [*asked("chain", "1-1", REFUSED), *there(MADE, "1-1")]),
        ("ghost", there(RIGHT, "1-1")),
        ("twice", [*asked("chain", "1-1"), *there(MADE, "1-1", "1-1")]),
        ("left over", [*asked("chain", "1-1", REFUSED), *there(FIRST, "1-1")]),
        ("half done", [*asked("news", "1-2"), *there(ALL, "1-2")]),
        ("half done", [*asked("news", "1-2"), *there(EVEN, "1-2")]),
        ("reuse", [*asked("chain", "1-1"), *there(MADE, "1-1"), *there(MADE, "1-2")]),
        ("redelivered after settle",
         [*asked("chain", "1-1"), *there(MADE, "1-1"),
          Event(phase="complete", kind="taken", entity=MADE, number=1), *there(MADE, "1-1")]),
        ("gap", [*asked("chain", "1-1"), *there(MADE, "1-1")[:0],
                 Event(phase="complete", kind="there", entity=MADE, body="1-1", number=2)]),
    ],
)  # fmt: skip
def test_each_anomaly_is_found(rule: str, history: list[Event]) -> None:
    assert rule in {anomaly.rule for anomaly in check_works(history)}


def test_a_good_history_has_none() -> None:
    history = [
        *asked("transfer", "1-1"),
        *asked("chain", "1-2"),
        *asked("news", "1-3"),
        *there(LEFT, "1-1"),
        *there(RIGHT, "1-1"),
        *there(MADE, "1-2"),
        *there(ALL, "1-3"),
    ]
    assert not check_works(history)
