"""`onibus producers`: who has published, and letting one begin anew."""

from __future__ import annotations

from tests.cli.conftest import Onibus
from tests.client.server_helpers import ServerThread


def test_producers_are_listed_and_forgotten(onibus: Onibus, server: ServerThread) -> None:
    onibus.run("queue", "create", "q")
    with server.client() as client:
        client.publish("q", producer="job", batch=0, attempts=[], checkpoint="a")
    [told] = onibus.told("producers", "list", "q")
    assert told == {"producer": "job", "batch": 0, "checkpoint": "a"}
    assert "job" in onibus.shown("producers", "list", "q")
    onibus.run("producers", "forget", "q", "job", "--yes")
    assert "no producer" in onibus.run("producers", "forget", "q", "job", "--yes", code=1).stderr
    assert onibus.told("producers", "list", "q") == []
