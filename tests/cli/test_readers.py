"""Readers and claims on the command line: what a lost query leaves is seen and given back."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Onibus
from tests.client.server_helpers import ServerThread


@pytest.mark.promise("R5", "R8")
def test_claims_of_a_lost_query_are_listed_and_given_back(
    onibus: Onibus, server: ServerThread
) -> None:
    onibus.run("queue", "create", "q")
    assert onibus.told("claims", "list", "q") == []
    for body in "abc":
        onibus.run("send", "q", body)
    with server.client() as client:
        client.claim("q", "lost", 1)
        client.claim("q", "lost", 1)
        client.claim("q", "other", 1)
    assert "lost" in onibus.shown("claims", "list", "q")
    onibus.run("claims", "release", "q", "7", "--reader", "lost", code=1)
    assert onibus.told("claims", "release", "q", "2", "--reader", "lost") == [{"released": [2]}]
    assert onibus.shown("claims", "release", "q", "--reader", "lost") == "1 released\n"
    assert [one["reader"] for one in onibus.told("claims", "list", "q")] == ["other"]
    assert [one.get("delivery_count", 0) for one in onibus.told("peek", "q")] == [0, 0, 0]


@pytest.mark.promise("R8")
def test_readers_are_listed_with_their_lag_and_removed(
    onibus: Onibus, server: ServerThread
) -> None:
    onibus.run("queue", "create", "q")
    with server.client() as client:
        client.create_reader("q", "lake")
    onibus.run("send", "q", "a")
    [reader] = onibus.told("readers", "list", "q")
    assert (reader["name"], reader["lag"]) == ("lake", [1])
    assert "lake" in onibus.shown("readers", "list", "q")
    onibus.run("readers", "remove", "q", "--reader", "lake")
    assert onibus.told("readers", "list", "q") == []
