"""The Query protocol with raw requests, as older SDKs and hand-written clients send them."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from tests.server.processes import PATIENCE_S, Served, wait_for
from tests.sqs.clients import new_name
from tests.sqs.signing import presigned, query_request, send

_SPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


class Query:
    """Asks, and reads the XML of the answer."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def raw(self, action: str, path: str = "/", **given: Any) -> httpx.Response:
        return send(query_request(self.endpoint, action, path, **given))

    def __call__(self, action: str, path: str = "/", **given: Any) -> ElementTree.Element:
        response = self.raw(action, path, **given)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/xml"
        root = ElementTree.fromstring(response.text)
        assert root.tag == f"{_SPACE}{action}Response"
        assert root.find(f"{_SPACE}ResponseMetadata/{_SPACE}RequestId") is not None
        return root

    def error(self, action: str, path: str = "/", **given: Any) -> tuple[int, str, str]:
        response = self.raw(action, path, **given)
        root = ElementTree.fromstring(response.text)
        assert root.tag == f"{_SPACE}ErrorResponse"
        return response.status_code, *[
            root.findtext(f"{_SPACE}Error/{_SPACE}{name}") or "" for name in ("Code", "Message")
        ]  # type: ignore[return-value]


def texts(root: ElementTree.Element, name: str) -> list[str]:
    return [one.text or "" for one in root.iter(_SPACE + name)]


@pytest.fixture
def query(server: Served) -> Query:
    return Query(server.ready["sqs"])


def make(query: Query, **attributes: str) -> str:
    """Make a FIFO queue; return its path."""
    given: dict[str, str] = {"Attribute.1.Name": "FifoQueue", "Attribute.1.Value": "true"}
    for n, (name, value) in enumerate(attributes.items(), 2):
        given |= {f"Attribute.{n}.Name": name, f"Attribute.{n}.Value": value}
    (url,) = texts(query("CreateQueue", QueueName=new_name(".fifo"), **given), "QueueUrl")
    assert url.startswith(query.endpoint)
    return url.removeprefix(query.endpoint)


def test_a_message_there_and_back(query: Query) -> None:
    path = make(query)
    sent = query(
        "SendMessage",
        path,
        **{
            "MessageBody": "a <b> & \r\n c",
            "MessageGroupId": "g",
            "MessageDeduplicationId": "d",
            "MessageAttribute.0.Name": "n",
            "MessageAttribute.0.Value.DataType": "Number",
            "MessageAttribute.0.Value.StringValue": "7",
            "MessageAttribute.5.Name": "data",
            "MessageAttribute.5.Value.DataType": "Binary",
            "MessageAttribute.5.Value.BinaryValue": "AP8=",
        },
    )
    received = query(
        "ReceiveMessage",
        path,
        **{"AttributeName.1": "All", "MessageAttributeName.1": "All", "MaxNumberOfMessages": "10"},
    )
    assert texts(received, "Body") == ["a <b> & \r\n c"]
    assert texts(received, "MessageId") == texts(sent, "MessageId")
    assert texts(received, "MD5OfMessageAttributes") == texts(sent, "MD5OfMessageAttributes")
    assert texts(received, "BinaryValue") == ["AP8="]
    (message,) = received.iter(_SPACE + "Message")
    attributes = {
        one.findtext(_SPACE + "Name"): one.findtext(_SPACE + "Value")
        for one in message.findall(_SPACE + "Attribute")
    }
    assert attributes["MessageGroupId"] == "g"
    assert attributes["SequenceNumber"] == texts(sent, "SequenceNumber")[0]
    (handle,) = texts(received, "ReceiptHandle")
    query(
        "ChangeMessageVisibility",
        QueueUrl=query.endpoint + path,
        ReceiptHandle=handle,
        VisibilityTimeout=60,
    )
    query("DeleteMessage", path, ReceiptHandle=handle)
    assert texts(query("ReceiveMessage", path), "Body") == []


def test_batches(query: Query) -> None:
    path = make(query)
    given: dict[str, str] = {}
    for n, body in enumerate(("one", "\x01"), 1):
        entry = f"SendMessageBatchRequestEntry.{n}."
        given |= {
            entry + "Id": f"e{n}",
            entry + "MessageBody": body,
            entry + "MessageGroupId": "g",
            entry + "MessageDeduplicationId": f"d{n}",
        }
    done = query("SendMessageBatch", path, **given)
    assert len(list(done.iter(_SPACE + "SendMessageBatchResultEntry"))) == 1
    (failed,) = done.iter(_SPACE + "BatchResultErrorEntry")
    assert failed.findtext(_SPACE + "Id") == "e2"
    assert failed.findtext(_SPACE + "SenderFault") == "true"
    (handle,) = texts(query("ReceiveMessage", path), "ReceiptHandle")
    entry = "ChangeMessageVisibilityBatchRequestEntry.1."
    given = {entry + "Id": "a", entry + "ReceiptHandle": handle, entry + "VisibilityTimeout": "9"}
    assert texts(query("ChangeMessageVisibilityBatch", path, **given), "Id") == ["a"]
    entry = "DeleteMessageBatchRequestEntry.1."
    done = query("DeleteMessageBatch", path, **{entry + "Id": "a", entry + "ReceiptHandle": handle})
    assert len(list(done.iter(_SPACE + "DeleteMessageBatchResultEntry"))) == 1


def test_attributes_tags_and_lists(query: Query) -> None:
    path = make(query, DelaySeconds="3")
    told = query("GetQueueAttributes", path, **{"AttributeName.1": "All"})
    found = {
        one.findtext(_SPACE + "Name"): one.findtext(_SPACE + "Value")
        for one in told.iter(_SPACE + "Attribute")
    }
    assert found["DelaySeconds"] == "3"
    query(
        "SetQueueAttributes",
        path,
        **{"Attribute.Name": "DelaySeconds", "Attribute.Value": "0"},
    )
    told = query("GetQueueAttributes", path, **{"AttributeName.1": "DelaySeconds"})
    assert texts(told, "Value") == ["0"]
    query("TagQueue", path, **{"Tag.1.Key": "k", "Tag.1.Value": "v"})
    tags = query("ListQueueTags", path)
    assert (texts(tags, "Key"), texts(tags, "Value")) == (["k"], ["v"])
    query("UntagQueue", path, **{"TagKey.1": "k"})
    assert texts(query("ListQueueTags", path), "Key") == []
    name = path.rpartition("/")[2]
    assert texts(query("ListQueues", QueueNamePrefix=name), "QueueUrl") == [query.endpoint + path]
    query(
        "AddPermission",
        path,
        **{"Label": "l", "AWSAccountId.1": "111111111111", "ActionName.1": "SendMessage"},
    )
    query("RemovePermission", path, Label="l")
    query("PurgeQueue", path)
    query("DeleteQueue", path)


def test_errors(query: Query) -> None:
    assert query.error("ReceiveMessage", "/000000000000/no-such") == (
        400,
        "AWS.SimpleQueueService.NonExistentQueue",
        "The specified queue does not exist for this wsdl version.",
    )
    assert query.error("Nonsense")[:2] == (400, "InvalidAction")
    assert query.error("SendMessage")[:2] == (400, "MissingParameter")
    path = make(query)
    assert query.error("SendMessage", path, MessageBody="x")[:2] == (400, "MissingParameter")
    assert query.error("ReceiveMessage", path, MaxNumberOfMessages="x")[:2] == (
        400,
        "MalformedInput",
    )
    assert query.error("ReceiveMessage", path, MaxNumberOfMessages="11") == (
        400,
        "InvalidParameterValue",
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, "
        "if provided.",
    )
    query("PurgeQueue", path)
    assert query.error("PurgeQueue", path)[:2] == (
        403,
        "AWS.SimpleQueueService.PurgeQueueInProgress",
    )


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("ReceiveMessage", {"ReceiveRequestAttemptId": "a\x01b"}),
        ("DeleteMessage", {"ReceiptHandle": "\x00\x1f"}),
        ("DeleteMessage", {"ReceiptHandle": "\ufffe\uffff"}),
        ("No\x08Such", {}),
    ],
)
def test_an_answer_can_be_read_whatever_was_asked(
    query: Query, action: str, given: dict[str, str]
) -> None:
    # XML has no way to write such characters: a refusal that repeats them is read all the same.
    status, code, text = query.error(action, make(query), **given)
    assert status == 400
    assert code
    assert "\ufffd" in text


def test_tags_that_xml_cannot_carry_are_told_in_their_place(query: Query) -> None:
    path = make(query)
    query("TagQueue", path, **{"Tag.1.Key": "a\x02", "Tag.1.Value": "b\x03"})
    tags = query("ListQueueTags", path)
    assert (texts(tags, "Key"), texts(tags, "Value")) == (["a\ufffd"], ["b\ufffd"])


def test_dead_letter_queues_and_move_tasks(query: Query) -> None:
    def arn_of(path: str) -> str:
        told = query("GetQueueAttributes", path, **{"AttributeName.1": "QueueArn"})
        return texts(told, "Value")[0]

    morgue = make(query)
    policy = {"deadLetterTargetArn": arn_of(morgue), "maxReceiveCount": 1}
    path = make(query, RedrivePolicy=json.dumps(policy))
    sources = query("ListDeadLetterSourceQueues", morgue)
    assert texts(sources, "QueueUrl") == [query.endpoint + path]
    (url,) = texts(query("GetQueueUrl", QueueName=path.rpartition("/")[2]), "QueueUrl")
    assert url == query.endpoint + path
    for n in range(5):
        given = {"MessageBody": f"bad {n}", "MessageGroupId": "g", "MessageDeduplicationId": str(n)}
        query("SendMessage", path, **given)
        query("ReceiveMessage", path, VisibilityTimeout=0)

    def letters() -> str:
        asked = {"AttributeName.1": "ApproximateNumberOfMessages"}
        return texts(query("GetQueueAttributes", morgue, **asked), "Value")[0]

    wait_for(lambda: letters() == "5")
    source = arn_of(morgue)
    begun = query("StartMessageMoveTask", SourceArn=source, MaxNumberOfMessagesPerSecond=1)
    (handle,) = texts(begun, "TaskHandle")
    task = query("ListMessageMoveTasks", SourceArn=source)
    assert texts(task, "TaskHandle") == [handle]
    assert texts(task, "Status") == ["RUNNING"]
    assert texts(task, "MaxNumberOfMessagesPerSecond") == ["1"]
    moved = query("CancelMessageMoveTask", TaskHandle=handle)
    assert int(texts(moved, "ApproximateNumberOfMessagesMoved")[0]) < 5
    status, code, _ = query.error("StartMessageMoveTask", SourceArn=arn_of(path))
    assert (status, code) == (400, "InvalidParameterValue")
    status, code, _ = query.error("ListMessageMoveTasks", SourceArn=source + "-no-such")
    assert (status, code) == (404, "ResourceNotFoundException")


def test_a_get_request_with_everything_in_its_query(query: Query) -> None:
    url = f"{query.endpoint}/?Action=ListQueues&QueueNamePrefix=no-such-queue"
    response = httpx.get(presigned(url), trust_env=False, timeout=PATIENCE_S)
    assert response.status_code == 200
    assert "<ListQueuesResult></ListQueuesResult>" in response.text


def test_a_client_that_accepts_json_gets_json(query: Query) -> None:
    def ask(action: str, **given: str) -> tuple[int, Any]:
        request = query_request(query.endpoint, action, "/", **given)
        response = send(request, headers={**request.headers, "Accept": "application/json"})
        assert response.headers["content-type"] == "application/json"
        return response.status_code, response.json()

    name = new_name()
    url = ask("CreateQueue", QueueName=name)[1]["CreateQueueResponse"]["CreateQueueResult"]
    attribute = {"MessageAttribute.1.Name": "a", "MessageAttribute.1.Value.DataType": "String"}
    attribute["MessageAttribute.1.Value.StringValue"] = "b"
    sent = ask("SendMessage", QueueUrl=url["QueueUrl"], MessageBody="m", **attribute)[1]
    names = {"AttributeName.1": "SenderId", "MessageAttributeName.1": "All"}
    received = ask("ReceiveMessage", QueueUrl=url["QueueUrl"], **names)[1]["ReceiveMessageResponse"]
    (message,) = received["ReceiveMessageResult"]["messages"]
    sent_id = sent["SendMessageResponse"]["SendMessageResult"]["MessageId"]
    assert (message["Body"], message["MessageId"]) == ("m", sent_id)
    assert message["Attributes"] == [{"Name": "SenderId", "Value": "000000000000"}]
    value = {"StringValue": "b", "DataType": "String"}
    assert message["MessageAttributes"] == [{"Name": "a", "Value": value}]
    assert received["ResponseMetadata"]["RequestId"]
    listed = ask("ListQueues", QueueNamePrefix=name)[1]["ListQueuesResponse"]["ListQueuesResult"]
    assert listed == {"queueUrls": [url["QueueUrl"]]}
    status, refused = ask("GetQueueUrl", QueueName="no-such-queue")
    assert (status, refused["Error"]["Type"]) == (400, "Sender")
    assert refused["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"


def test_a_get_of_a_queue_url_without_an_action(query: Query) -> None:
    (url,) = texts(query("CreateQueue", QueueName=new_name()), "QueueUrl")
    response = httpx.get(url, trust_env=False, timeout=PATIENCE_S)
    assert response.status_code == 404
    assert response.text == "<UnknownOperationException/>\n"
