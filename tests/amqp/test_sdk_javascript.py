"""The same through @azure/service-bus, in JavaScript."""

from __future__ import annotations

import json

import pytest

from onibus.client import Client
from tests.amqp.sdk_helpers import SCRIPTS, Name
from tests.node import run_node
from tests.server.processes import Served


@pytest.mark.promise("B1", "B3", "B4", "D1", "L1", "L2", "S5", "S7")
def test_javascript_clients_do_all_of_it(server: Served, owner: Client, name: Name) -> None:
    names = {word: name(word) for word in ("queue", "sessions", "topic")}
    owner.create_queue(names["queue"], requires_duplicate_detection=True)
    owner.create_queue(names["sessions"], requires_session=True)
    owner.create_topic(names["topic"])
    owner.create_subscription(names["topic"], "some")
    said = run_node(SCRIPTS / "queues.mjs", CONNECTION=server.service_bus, NAMES=json.dumps(names))
    assert said.endswith("all done\n")
    assert owner.queue(names["queue"]).active_count == 0


@pytest.mark.promise("X2")
def test_javascript_clients_delete_in_batches(server: Served, owner: Client, name: Name) -> None:
    """The stable client has no call for it yet; the next one has."""
    names = {word: name(word) for word in ("queue", "partitioned", "sessions")}
    owner.create_queue(names["queue"])
    owner.create_queue(names["partitioned"], enable_partitioning=True)
    owner.create_queue(names["sessions"], requires_session=True)
    said = run_node(
        SCRIPTS / "deleting.mjs", CONNECTION=server.service_bus, NAMES=json.dumps(names)
    )
    assert said.endswith("all done\n")
    assert owner.queue(names["queue"]).dead_lettered_count == 0
    assert owner.queue(names["partitioned"]).active_count == 0
    assert owner.queue(names["sessions"]).active_count == 600
