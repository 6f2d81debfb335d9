"""`kill -9` of a server under the load of its clients; what they were told has no anomaly."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onibus.testing.history import Event
from tests.crash.kill_server import check, figures, killed

#: Longer runs: `make kill`.
KILLS = 10


@pytest.mark.promise("B8", "D1", "D5", "S2", "S3", "S4", "S6", "S7", "P4", "B4", "L2", "X9")
def test_kills_of_a_server_leave_no_anomaly(tmp_path: Path) -> None:
    history = asyncio.run(asyncio.wait_for(killed(tmp_path, 1, KILLS), 300))
    anomalies = check(history)
    assert not anomalies, anomalies[:10]
    counts = figures(history)
    for kind in ("send", "schedule", "receive", "accept", "dropped", "drain"):
        assert counts[kind] > 0, f"nobody tried: {kind}"
    for kind in ("complete", "abandon", "defer", "dead-letter", "cancel"):
        assert counts[kind] > 0, f"nobody tried: {kind}"
    # The check would see a loss: without the deliveries of one message it is one.
    lost = next(e.body for e in history.events if e.kind == "drain" and e.body is not None)
    history.events = [e for e in history.events if not _delivers(e, lost)]
    assert "lost" in {anomaly.rule for anomaly in check(history)}


def _delivers(event: Event, body: str) -> bool:
    return event.kind in ("receive", "drain") and event.body == body
