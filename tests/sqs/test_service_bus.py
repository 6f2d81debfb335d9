"""One queue, two kinds of clients: what boto3 sends azure-servicebus receives, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import SessionCannotBeLockedError

from onibus.client import Client
from tests.cli.conftest import Onibus
from tests.server.processes import Served
from tests.server.server_helpers import developing
from tests.sqs.clients import bodies, delete, get, new_fifo, new_name, new_queue, put
from tests.sqs.signing import query_request, send
from tests.sqs.test_standard import arn_of, policy_of


@pytest.fixture(scope="module")
def azure(server: Served) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.service_bus, retry_total=0) as client:
        yield client


@pytest.fixture(scope="module")
def owner(server: Served) -> Iterator[Client]:
    with Client.connect(server.ready["development"]) as client:
        yield client


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_from_boto3_to_service_bus(sqs: Any, azure: ServiceBusClient) -> None:
    url = new_queue(sqs)
    attributes = {
        "kind": {"DataType": "String", "StringValue": "apple"},
        "count": {"DataType": "Number", "StringValue": "3"},
        "price": {"DataType": "Number", "StringValue": "0.5"},
        "data": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="größe", MessageAttributes=attributes)
    with azure.get_queue_receiver(name_of(url)) as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert b"".join(message.body).decode() == "größe"
        assert message.message_id == sent["MessageId"]
        assert message.application_properties == {
            b"kind": b"apple",
            b"count": 3,
            b"price": 0.5,
            b"data": b"\x00\xff",
        }
        receiver.complete_message(message)
    assert get(sqs, url) == []


def test_from_service_bus_to_boto3(sqs: Any, azure: ServiceBusClient) -> None:
    url = new_queue(sqs)
    with azure.get_queue_sender(name_of(url)) as sender:
        sender.send_messages(
            ServiceBusMessage(
                "größe",
                message_id="mine",
                application_properties={"kind": "apple", "count": 3, "fresh": True},
            )
        )
        sender.send_messages(ServiceBusMessage(b"\xff\x00"))
    text, data = get(sqs, url, MessageAttributeNames=["All"])
    assert text["Body"] == "größe"
    assert text["MessageId"] == "mine"
    assert text["MessageAttributes"] == {
        "kind": {"DataType": "String", "StringValue": "apple"},
        "count": {"DataType": "Number", "StringValue": "3"},
        "fresh": {"DataType": "String", "StringValue": "true"},
    }
    # What is no text comes as base64, and says so.
    assert data["Body"] == "/wA="
    assert data["MessageAttributes"]["Onibus.Encoding"]["StringValue"] == "base64"
    delete(sqs, url, text, data)


def test_what_sqs_does_not_carry_comes_through_in_both_protocols(
    sqs: Any, azure: ServiceBusClient, server: Served
) -> None:
    url = new_queue(sqs)
    given: dict[Any, Any] = {
        "text": "a\x00b",
        "odd": float("inf"),
        "na\x02me": "v",
        "nothing": None,
    }
    with azure.get_queue_sender(name_of(url)) as sender:
        sender.send_messages(
            ServiceBusMessage("x", message_id="id\x01", application_properties=given)
        )
    (message,) = get(sqs, url, MessageAttributeNames=["All"], VisibilityTimeout=0)
    assert message["MessageId"] == "id\x01"
    assert message["MessageAttributes"] == {
        "text": {"DataType": "Binary", "BinaryValue": b"a\x00b"},
        "odd": {"DataType": "String", "StringValue": "inf"},
        "na\x02me": {"DataType": "String", "StringValue": "v"},
    }
    # XML has no way to write such characters: the message is received all the same.
    asked = {"AttributeName.1": "All", "MessageAttributeName.1": "All"}
    path = f"/000000000000/{name_of(url)}"
    answer = send(query_request(server.ready["sqs"], "ReceiveMessage", path, **asked))
    root = ElementTree.fromstring(answer.text)
    (told,) = [one.text for one in root.iter() if one.tag.endswith("}MessageId")]
    assert told == "id\ufffd"
    assert "YQBi" in answer.text, "the text in base64"


def test_dead_letters_of_one_are_those_of_the_other(sqs: Any, azure: ServiceBusClient) -> None:
    morgue = new_queue(sqs)
    url = new_queue(sqs, RedrivePolicy=policy_of(sqs, morgue, 5))
    attributes = {"k": {"DataType": "Number", "StringValue": "1"}}
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    with azure.get_queue_receiver(name_of(url)) as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        receiver.dead_letter_message(message, reason="bad", error_description="why")
    how: dict[str, Any] = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    (letter,) = get(sqs, morgue, WaitTimeSeconds=10, VisibilityTimeout=0, **how)
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, url)
    assert letter["MessageAttributes"] == attributes, "why it is here is no attribute of its own"
    with azure.get_queue_receiver(name_of(morgue)) as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert (message.dead_letter_reason, message.dead_letter_source) == ("bad", name_of(url))
        receiver.complete_message(message)


@pytest.mark.promise("F10", "B4")
def test_a_group_in_flight_is_a_session_that_nobody_else_can_lock(
    sqs: Any, azure: ServiceBusClient
) -> None:
    url = new_fifo(sqs)
    put(sqs, url, "1", "a")
    put(sqs, url, "2", "a")
    (message,) = get(sqs, url, 1)
    with (
        pytest.raises(SessionCannotBeLockedError),
        azure.get_queue_receiver(name_of(url), session_id="a") as receiver,
    ):
        receiver.receive_messages(1, max_wait_time=1)
    delete(sqs, url, message)
    with azure.get_queue_receiver(name_of(url), session_id="a") as receiver:
        (second,) = receiver.receive_messages(2, max_wait_time=10)
        assert b"".join(second.body) == b"2"
        receiver.abandon_message(second)
    (again,) = get(sqs, url, WaitTimeSeconds=10, AttributeNames=["All"])
    assert again["Body"] == "2"
    assert again["Attributes"]["ApproximateReceiveCount"] == "2", "one count for both"


def test_the_same_queue_in_command_line_and_metrics(server: Served, sqs: Any) -> None:
    url = new_fifo(sqs)
    put(sqs, url, "1", "a", "same")
    put(sqs, url, "2", "b")
    put(sqs, url, "again", "a", "same")
    (message,) = get(sqs, url, 1)
    name = name_of(url)
    onibus = Onibus(server.ready["development"])
    assert name in onibus.shown("queue", "list")
    (shown,) = onibus.told("queue", "show", name)
    assert (shown["active_count"], shown["held_count"]) == (2, 1)
    assert shown["duplicates_dropped"] == 1
    first, second = onibus.told("peek", name)
    assert (first["body"], first["message_id"], first["session_id"]) == ("1", "same", "a")
    assert second["body"] == "2"
    delete(sqs, url, message)
    with server.client() as client:
        lines = client.get("/metrics/per-object", headers=developing()).text.splitlines()

    def metric(metric_name: str) -> float:
        (line,) = [one for one in lines if one.startswith(f'{metric_name}{{entity="{name}"')]
        return float(line.rpartition(" ")[2])

    assert metric("onibus_messages_accepted_total") == 2
    assert metric("onibus_duplicates_dropped_total") == 1
    assert metric("onibus_messages_delivered_total") == 1
    assert metric("onibus_completed_total") == 1
    assert any('route="/sqs/SendMessage"' in line for line in lines), "requests are counted"


@pytest.mark.promise("F10")
def test_groups_are_sessions(sqs: Any, azure: ServiceBusClient) -> None:
    url = new_fifo(sqs)
    for body, group in (("1", "a"), ("2", "b"), ("3", "a")):
        put(sqs, url, body, group, f"id-{body}")
    with azure.get_queue_receiver(name_of(url), session_id="a") as receiver:
        received = receiver.receive_messages(2, max_wait_time=10)
        assert [b"".join(one.body) for one in received] == [b"1", b"3"]
        assert [one.message_id for one in received] == ["id-1", "id-3"]
        assert bodies(get(sqs, url)) == ["2"], "the session is locked: its group gives nothing"
        for one in received:
            receiver.complete_message(one)
    with azure.get_queue_sender(name_of(url)) as sender:
        sender.send_messages(ServiceBusMessage("4", session_id="a", message_id="id-4"))
        sender.send_messages(ServiceBusMessage("again", session_id="a", message_id="id-1"))
    (message,) = get(sqs, url, AttributeNames=["All"], WaitTimeSeconds=5)
    assert message["Body"] == "4"
    assert message["Attributes"]["MessageDeduplicationId"] == "id-4"
    assert message["Attributes"]["MessageGroupId"] == "a"


def test_queues_made_elsewhere_are_queues_of_sqs(sqs: Any, owner: Client) -> None:
    name = new_name("-plain")
    owner.create_queue(name, lock_duration_ms=45_000, max_message_bytes=2_048)
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert told["VisibilityTimeout"] == "45"
    assert told["MaximumMessageSize"] == "2048"
    assert told["MessageRetentionPeriod"] == "1209600"
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert bodies(get(sqs, url)) == ["x"]
    info = owner.queue(name)
    assert (info.active_count, info.held_count) == (1, 1), "the same counts for everybody"


def test_settings_changed_elsewhere_count(sqs: Any, owner: Client) -> None:
    url = new_queue(sqs, VisibilityTimeout="40000")
    owner.change_queue(name_of(url), lock_duration_ms=20_000)
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert told["Attributes"] == {"VisibilityTimeout": "20"}


def test_partitioned_queues_and_those_with_sessions(sqs: Any, owner: Client) -> None:
    name = new_name("-parted")
    owner.create_queue(name, enable_partitioning=True)
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    entries = [{"Id": f"e{n}", "MessageBody": str(n), "DelaySeconds": n % 2} for n in range(6)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 6
    sqs.send_message(QueueUrl=url, MessageBody="6", DelaySeconds=1)
    seen: list[Any] = []
    while len(seen) < 7:
        some = get(sqs, url, WaitTimeSeconds=10)
        assert some
        delete(sqs, url, *some)
        seen += bodies(some)
    assert sorted(seen) == [str(n) for n in range(7)]
    name = new_name("-sessions")
    owner.create_queue(name, requires_session=True)
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="s")
    with pytest.raises(sqs.exceptions.UnsupportedOperation):
        get(sqs, url)
