"""`kill -9` of a server under the load of three protocols; what its clients saw has no anomaly."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.crash.crowd import Crowd
from tests.crash.kill_server import killed
from tests.simulator.history import Event

#: Longer runs: `make kill`.
KILLS = 15

# Connections that a kill broke are left to the garbage collector by these clients.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.promise(
    "B8", "D1", "D5", "S2", "S3", "S4", "S6", "S7", "P4", "B4", "B5", "B6", "L2", "X9", "R5", "F1"
)
def test_kills_of_a_server_leave_no_anomaly(tmp_path: Path) -> None:
    crowd, lives = asyncio.run(asyncio.wait_for(killed(tmp_path, 10, KILLS), 1_200))
    seen = crowd.check()
    assert not seen.anomalies, seen.anomalies[:10]
    for end in ("serving", "starting", "stopping", "stopped"):
        assert lives.ends[end] > 0, f"no server was ended while {end}: choose another seed"
    _control(crowd)


def _control(crowd: Crowd) -> None:
    """The check would see a loss: without the deliveries of one message it is one."""
    events = crowd.history.events
    sent = {one.operation: one.body for one in events if one.kind == "send" and one.body}
    for client in ("amqp", "sqs", ""):
        lost = next(
            sent[one.operation]
            for one in events
            if one.kind == "send" and one.phase == "complete" and one.outcome == "ok"
            and one.duplicate_of is None and _client_of(events, one.operation) == client
        )  # fmt: skip
        crowd.history.events = [one for one in events if not _delivers(one, lost)]
        assert "lost" in {anomaly.rule for anomaly in crowd.check().anomalies}, client
    crowd.works_history.events = [
        one for one in crowd.works_history.events if (one.kind, one.entity) != ("there", "right")
    ]
    assert "half done" in {anomaly.rule for anomaly in crowd.check().anomalies}


def _client_of(events: list[Event], operation: int) -> str:
    return next(one.client for one in events if one.operation == operation)


def _delivers(event: Event, body: str | None) -> bool:
    return event.kind in ("receive", "drain") and event.body == body
