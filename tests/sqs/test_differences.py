"""What differed from the real service, through the clients that showed it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.processes import Served, wait_for
from tests.sqs.clients import client_of, new_name
from tests.sqs.three_clients import Asking, Refused, asking


@pytest.fixture(scope="module", params=["boto3", "query", "awscli", "javascript"])
def client(request: pytest.FixtureRequest, server: Served) -> Iterator[Asking]:
    with asking(request.param, server.ready["sqs"]) as one:
        yield one


@pytest.fixture(scope="module")
def query(server: Served) -> Iterator[Asking]:
    """boto3 1.26, which speaks Query."""
    with asking("query", server.ready["sqs"]) as one:
        yield one


def code_of(refused: pytest.ExceptionInfo[Refused]) -> str:
    return refused.value.code.removeprefix("AWS.SimpleQueueService.")


def new(client: Asking, suffix: str = "", **attributes: str) -> str:
    made = client.CreateQueue(QueueName=new_name(suffix), Attributes=attributes)
    return str(made["QueueUrl"])


def get(client: Asking, url: str, **how: Any) -> list[Any]:
    """Receive in words that boto3 1.26 knows too."""
    received = client.ReceiveMessage(QueueUrl=url, MaxNumberOfMessages=10, **how)
    return list(received.get("Messages", []))


def arn_of(client: Asking, url: str) -> str:
    told = client.GetQueueAttributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(told["Attributes"]["QueueArn"])


def policy(client: Asking, url: str, count: int = 1) -> str:
    return json.dumps({"deadLetterTargetArn": arn_of(client, url), "maxReceiveCount": count})


def test_switches_are_not_case_sensitive(client: Asking) -> None:
    url = new(client, ".fifo", FifoQueue="True", ContentBasedDeduplication="TRUE")
    names = ["FifoQueue", "ContentBasedDeduplication"]
    told = client.GetQueueAttributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert told == {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    client.SetQueueAttributes(QueueUrl=url, Attributes={"ContentBasedDeduplication": "False"})
    told = client.GetQueueAttributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert told["ContentBasedDeduplication"] == "false"


def test_the_type_of_a_queue_can_be_set_to_what_it_is(client: Asking) -> None:
    url = new(client, ".fifo", FifoQueue="true")
    client.SetQueueAttributes(QueueUrl=url, Attributes={"FifoQueue": "true", "DelaySeconds": "3"})
    told = client.GetQueueAttributes(QueueUrl=url, AttributeNames=["DelaySeconds"])
    assert told["Attributes"] == {"DelaySeconds": "3"}
    with pytest.raises(Refused) as refused:
        client.SetQueueAttributes(QueueUrl=url, Attributes={"FifoQueue": "false"})
    assert code_of(refused) == "InvalidAttributeValue"


def test_an_empty_list_is_an_empty_list(query: Asking) -> None:
    url = new(query)
    assert query.GetQueueAttributes(QueueUrl=url, AttributeNames=[]).get("Attributes", {}) == {}
    attributes = {"color": {"DataType": "String", "StringValue": "red"}}
    query.SendMessage(QueueUrl=url, MessageBody="m", MessageAttributes=attributes)
    (message,) = query.ReceiveMessage(QueueUrl=url, AttributeNames=[], MessageAttributeNames=[])[
        "Messages"
    ]
    assert "Attributes" not in message
    assert "MessageAttributes" not in message
    for action in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
        with pytest.raises(Refused) as refused:
            getattr(query, action)(QueueUrl=url, Entries=[])
        assert code_of(refused) == "EmptyBatchRequest"
    query.SendMessage(QueueUrl=url, MessageBody="m", MessageAttributes={})


def test_an_empty_batch_entry_id_is_invalid(client: Asking) -> None:
    url = new(client)
    with pytest.raises(Refused) as refused:
        client.SendMessageBatch(QueueUrl=url, Entries=[{"Id": "", "MessageBody": "m"}])
    assert code_of(refused) == "InvalidBatchEntryId"
    assert get(client, url) == [], "nothing was sent"


def test_a_queue_is_not_its_own_dead_letter_queue(client: Asking) -> None:
    url = new(client)
    with pytest.raises(Refused) as refused:
        client.SetQueueAttributes(QueueUrl=url, Attributes={"RedrivePolicy": policy(client, url)})
    assert code_of(refused) == "InvalidParameterValue"
    told = client.GetQueueAttributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert "RedrivePolicy" not in told


@pytest.mark.parametrize("name", ["café", "Ünï-cödé", "ſ_x"])
def test_latin_letters_in_attribute_names(client: Asking, name: str) -> None:
    url = new(client)
    attributes = {name: {"DataType": "String", "StringValue": "x"}}
    client.SendMessage(QueueUrl=url, MessageBody="m", MessageAttributes=attributes)
    (message,) = get(client, url, MessageAttributeNames=["*"])
    assert list(message["MessageAttributes"]) == [name]


@pytest.mark.parametrize("name", ["aws.x", "AmAzOn.y", "日本"])
def test_reserved_prefixes_in_any_case(client: Asking, name: str) -> None:
    url = new(client)
    attributes = {name: {"DataType": "String", "StringValue": "x"}}
    with pytest.raises(Refused) as refused:
        client.SendMessage(QueueUrl=url, MessageBody="m", MessageAttributes=attributes)
    assert code_of(refused) == "InvalidParameterValue"


def test_a_star_asks_for_all_message_attributes(client: Asking) -> None:
    url = new(client)
    attributes = {one: {"DataType": "String", "StringValue": one} for one in ("a", "b")}
    client.SendMessage(QueueUrl=url, MessageBody="m", MessageAttributes=attributes)
    (message,) = get(client, url, MessageAttributeNames=["*"])
    assert sorted(message["MessageAttributes"]) == ["a", "b"]


@pytest.mark.parametrize("own", [None, "Root=1-own"])
def test_the_trace_header_of_a_request_goes_with_its_messages(server: Served, own: Any) -> None:
    sqs = client_of(server.ready["sqs"])

    def trace(request: Any, **_: Any) -> None:
        request.headers["X-Amzn-Trace-Id"] = "Root=1-request"

    sqs.meta.events.register("before-sign.sqs.SendMessage", trace)
    sqs.meta.events.register("before-sign.sqs.SendMessageBatch", trace)
    url = sqs.create_queue(QueueName=new_name())["QueueUrl"]
    more = {}
    if own is not None:
        value = {"DataType": "String", "StringValue": own}
        more = {"MessageSystemAttributes": {"AWSTraceHeader": value}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="m", **more)
    assert ("MD5OfMessageSystemAttributes" in sent) == (own is not None)
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "e", "MessageBody": "m", **more}])
    names = {"MessageSystemAttributeNames": ["AWSTraceHeader"], "MessageAttributeNames": ["All"]}
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **names)["Messages"]
    expected = {"AWSTraceHeader": own or "Root=1-request"}
    assert [one["Attributes"] for one in received] == [expected] * 2
    assert not any("MessageAttributes" in one for one in received)


def test_a_move_task_whose_destination_is_gone(client: Asking) -> None:
    letters, target = new(client), new(client)
    source = new(client, RedrivePolicy=policy(client, letters))
    arn, destination = arn_of(client, letters), arn_of(client, target)
    # One in a second: the destination is gone long before the last of them.
    for body in "0123456789":
        client.SendMessage(QueueUrl=source, MessageBody=body)
    for message in get(client, source):
        client.hide(source, message, 0)

    def arrived() -> bool:
        names = ["ApproximateNumberOfMessages"]
        told = client.GetQueueAttributes(QueueUrl=letters, AttributeNames=names)
        return bool(told["Attributes"][names[0]] == "10")

    wait_for(arrived)
    how = {"DestinationArn": destination, "MaxNumberOfMessagesPerSecond": 1}
    client.StartMessageMoveTask(SourceArn=arn, **how)
    client.DeleteQueue(QueueUrl=target)

    def ended() -> Any:
        (task,) = client.ListMessageMoveTasks(SourceArn=arn)["Results"]
        return task if task["Status"] != "RUNNING" else None

    wait_for(ended)
    task = ended()
    assert task["Status"] == "FAILED"
    assert task["FailureReason"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert task["DestinationArn"] == destination


def test_a_dead_lettered_message_is_there_for_the_next_request(client: Asking) -> None:
    letters = new(client)
    source = new(client, RedrivePolicy=policy(client, letters, 2))
    names = ["ApproximateReceiveCount"]
    for n in range(10):
        client.SendMessage(QueueUrl=source, MessageBody=str(n))
        for _ in range(2):
            (message,) = get(client, source)
            client.hide(source, message, 0)
        # A short poll: it does not wait for messages, except for one that is on its way.
        (letter,) = get(client, letters, AttributeNames=names)
        assert letter["Body"] == str(n)
        assert letter["Attributes"] == {"ApproximateReceiveCount": "3"}, "counted on"
        client.DeleteMessage(QueueUrl=letters, ReceiptHandle=letter["ReceiptHandle"])
