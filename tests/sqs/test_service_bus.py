"""One queue, two kinds of clients: what boto3 sends azure-servicebus receives, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from onibus.client import Client
from tests.server.processes import Served
from tests.sqs.clients import bodies, delete, get, new_fifo, new_name, new_queue, put


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
