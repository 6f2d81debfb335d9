"""The REST runtime API of Service Bus (B11): messages over HTTP, and the official client."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from onibus.security.sas import make_token
from tests.atom.helpers import Name
from tests.client.server_helpers import development_string
from tests.server.processes import PATIENCE_S, Served
from tests.source_tree import ROOT

Azure = ServiceBusAdministrationClient


def _token(server: Served, resource: str = "") -> str:
    name = "RootManageSharedAccessKey"
    return make_token(f"sb://localhost/{resource}", name, server.root_key, int(time.time()) + 600)


@pytest.fixture
def rest(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=f"http://localhost:{server.port}",
        headers={"authorization": _token(server)},
        trust_env=False,
        timeout=PATIENCE_S,
    ) as client:
        yield client


def _broker(response: httpx.Response) -> dict[str, object]:
    found: dict[str, object] = json.loads(response.headers["BrokerProperties"])
    return found


@pytest.mark.promise("B11")
def test_messages_go_both_ways_with_the_official_client(
    server: Served, azure: Azure, rest: httpx.Client, name: Name
) -> None:
    queue = name("q")
    azure.create_queue(queue)
    given = {"MessageId": "m", "Label": "fruit", "TimeToLive": 90, "CorrelationId": "c"}
    headers = {"BrokerProperties": json.dumps(given), "Count": "3", "Kind": '"apple"'}
    sent = rest.post(f"/{queue}/messages", content=b"3 apples", headers=headers)
    assert (sent.status_code, sent.content) == (201, b"")
    connection = development_string(server.port, server.root_key)
    with (
        ServiceBusClient.from_connection_string(connection) as client,
        client.get_queue_receiver(queue, max_wait_time=PATIENCE_S) as receiver,
        client.get_queue_sender(queue) as sender,
    ):
        (found,) = receiver.receive_messages(1)
        assert (found.message_id, found.subject, str(found)) == ("m", "fruit", "3 apples")
        assert found.application_properties == {b"count": 3, b"kind": b"apple"}
        receiver.complete_message(found)
        properties: Any = {"price": 0.5, "Content-Length": "7", "note": "ä"}
        sender.send_messages(ServiceBusMessage("back", application_properties=properties))
    taken = rest.delete(f"/{queue}/messages/head", params={"timeout": "60"})
    assert (taken.status_code, taken.content) == (200, b"back")
    assert (taken.headers["price"], taken.headers["note"]) == ("0.5", '"\\u00e4"')
    assert taken.headers["content-length"] == "4"
    assert _broker(taken)["State"] == "Active"
    assert rest.delete(f"/{queue}/messages/head?timeout=0").status_code == 204


@pytest.mark.promise("B11", "B1")
def test_a_locked_message_is_unlocked_renewed_and_completed(
    azure: Azure, rest: httpx.Client, name: Name
) -> None:
    topic = name("t")
    azure.create_topic(topic)
    azure.create_subscription(topic, "s")
    batch = [{"Body": "1", "BrokerProperties": {"MessageId": "a/b"}}, {"Body": "2"}]
    kind = {"content-type": "application/vnd.microsoft.servicebus.json"}
    assert rest.post(f"/{topic}/messages", json=batch, headers=kind).status_code == 201
    head = f"/{topic}/Subscriptions/s/messages/head"
    first = rest.post(head, params={"timeout": "60"})
    assert (first.status_code, first.content, _broker(first)["DeliveryCount"]) == (201, b"1", 1)
    locked = first.headers["location"].partition("?")[0]
    assert locked.endswith(f"/messages/a%2Fb/{_broker(first)['LockToken']}")
    renewed = rest.post(locked)
    assert renewed.status_code == 200
    assert "LockedUntilUtc" in _broker(renewed)
    assert rest.put(locked).status_code == 200
    # The lock is gone: nothing is settled by it.
    for ask in (rest.put, rest.post, rest.delete):
        assert ask(locked).status_code == 404
    again = rest.post(head, params={"timeout": "60"})
    assert (again.content, _broker(again)["DeliveryCount"]) == (b"1", 2)
    assert rest.delete(again.headers["location"]).status_code == 200
    assert rest.delete(head, params={"timeout": "60"}).content == b"2"
    runtime = azure.get_subscription_runtime_properties(topic, "s")
    assert runtime.total_message_count == 0


@pytest.mark.promise("B11")
def test_what_cannot_be_done_is_refused_as_the_service_does(
    server: Served, azure: Azure, rest: httpx.Client, name: Name
) -> None:
    queue, sessions = name("q"), name("q")
    azure.create_queue(queue, max_message_size_in_kilobytes=1)
    azure.create_queue(sessions, requires_session=True)
    nobody = {"authorization": _token(server, name("other"))}
    bad = {"BrokerProperties": "{"}
    kind = {"content-type": "application/vnd.microsoft.servicebus.json"}
    missing = f"/{name('q')}/messages"
    statuses = {
        "no token": rest.post(f"/{queue}/messages", headers={"authorization": ""}),
        "another's token": rest.post(f"/{queue}/messages", headers=nobody),
        "no JSON": rest.post(f"/{queue}/messages", headers=bad),
        "no batch": rest.post(f"/{queue}/messages", content=b"{}", headers=kind),
        "too large": rest.post(f"/{queue}/messages", content=bytes(2_000)),
        "to nowhere": rest.post(missing),
        "from nowhere": rest.delete(f"{missing}/head"),
        "of a session": rest.delete(f"/{sessions}/messages/head"),
        "a bad timeout": rest.delete(f"/{queue}/messages/head?timeout=x"),
    }
    assert {why: one.status_code for why, one in statuses.items()} == {
        **{"no token": 401, "another's token": 401, "no JSON": 400, "no batch": 400},
        **{"too large": 403, "to nowhere": 410, "from nowhere": 410, "of a session": 400},
        "a bad timeout": 400,
    }
    assert azure.get_queue_runtime_properties(queue).total_message_count == 0


@pytest.mark.promise("B11", "P6")
def test_a_partitioned_queue_is_received_from_until_it_is_empty(
    azure: Azure, rest: httpx.Client, name: Name
) -> None:
    queue = name("q")
    azure.create_queue(queue, enable_partitioning=True)
    for n in range(20):
        assert rest.post(f"/{queue}/messages", content=f"{n}").status_code == 201
    found = {rest.delete(f"/{queue}/messages/head?timeout=0").text for _ in range(20)}
    assert found == {f"{n}" for n in range(20)}


@pytest.mark.promise("B11")
def test_the_examples_of_the_documentation_run(
    server: Served, azure: Azure, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "management.md").read_text("utf-8")
    section = page.partition("## Messages over REST")[2].partition("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    azure.create_queue("rest-orders")
    address = f"http://localhost:{server.port}"
    script = "\n".join(("set -e", f"ADDRESS={address}", f"TOKEN='{_token(server)}'", *lines))
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "3 apples" in done.stdout
    assert azure.get_queue_runtime_properties("rest-orders").total_message_count == 0
