"""F1–F10 and every action, the same with boto3, awscli and the JavaScript SDK, which checks MD5.

The server's clock can be moved: five minutes pass at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import md5, sha256
from typing import Any

import pytest

from onibus.protocols.sqs.actions.table import ACTIONS
from tests.server.processes import Served, served, wait_for
from tests.server.server_helpers import developing
from tests.sqs.clients import bodies, new_name
from tests.sqs.three_clients import NAMES, Asking, Refused, asking

INTERVAL_S = 300
_SERVICE = "AWS.SimpleQueueService."


@pytest.fixture(scope="module")
def timed() -> Iterator[Served]:
    with served("--ephemeral", "--test-mode", "--log-level", "error") as server:
        yield server


@pytest.fixture(scope="module", params=NAMES)
def sqs(request: pytest.FixtureRequest, timed: Served) -> Iterator[Asking]:
    with asking(request.param, timed.ready["sqs"]) as one:
        yield one


@pytest.fixture
def passes(timed: Served) -> Iterator[Callable[[float], None]]:
    """Let seconds pass at once."""
    with timed.client(headers=developing()) as client:

        def advance(seconds: float) -> None:
            given = {"advance_ms": int(seconds * 1_000)}
            client.post("/v1/test/clock", json=given).raise_for_status()

        yield advance


Passes = Callable[[float], None]


def refusal(call: Callable[..., Any], **given: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as error:
        call(**given)
    return error.value.code, error.value.text


@pytest.mark.promise("F1", "F8")
def test_the_interval_of_an_id(sqs: Asking, passes: Passes) -> None:
    url = sqs.new_fifo(OnibusPurgeForgetsIds="false")
    first = sqs.put(url, "one", "a", "same")
    assert sqs.put(url, "two", "b", "same")["SequenceNumber"] == first["SequenceNumber"]
    (message,) = sqs.get(url)
    sqs.delete(url, message)
    sqs.PurgeQueue(QueueUrl=url)
    passes(INTERVAL_S - 10)
    again = sqs.put(url, "three", "a", "same")
    assert again["MessageId"] == first["MessageId"] == message["MessageId"]
    assert again["MD5OfMessageBody"] == md5(b"three").hexdigest()
    assert sqs.get(url) == []
    # A duplicate does not make the interval longer.
    passes(10)
    new = sqs.put(url, "four", "a", "same")
    assert new["MessageId"] != first["MessageId"]
    assert int(new["SequenceNumber"]) > int(first["SequenceNumber"])
    assert bodies(sqs.get(url)) == ["four"]


@pytest.mark.promise("F1")
def test_scope_and_batch(sqs: Asking) -> None:
    url = sqs.new_fifo(DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    entries = [
        {
            "Id": f"e{n}",
            "MessageBody": str(n),
            "MessageGroupId": "ab"[n % 2],
            "MessageDeduplicationId": "same",
        }
        for n in range(4)
    ]
    done = sqs.SendMessageBatch(QueueUrl=url, Entries=entries)["Successful"]
    numbers = [one["SequenceNumber"] for one in done]
    assert [one["Id"] for one in done] == ["e0", "e1", "e2", "e3"]
    assert numbers[0] == numbers[2] != numbers[1] == numbers[3]
    assert bodies(sqs.get(url)) == ["0", "1"]


@pytest.mark.promise("F2")
def test_without_an_id_or_a_group(sqs: Asking) -> None:
    url = sqs.new_fifo()
    code, text = refusal(sqs.SendMessage, QueueUrl=url, MessageBody="x", MessageGroupId="g")
    assert code == "InvalidParameterValue"
    assert text.startswith("The queue should either have ContentBasedDeduplication enabled or")
    assert refusal(sqs.SendMessage, QueueUrl=url, MessageBody="x") == (
        "MissingParameter",
        "The request must contain the parameter MessageGroupId.",
    )
    assert sqs.get(url) == []


@pytest.mark.promise("F3", "F4", "F5", "F6")
def test_content_and_ids(sqs: Asking) -> None:
    url = sqs.new_fifo(ContentBasedDeduplication="true")
    attribute = {"n": {"DataType": "Number.int", "StringValue": "007"}}
    first = sqs.send(url, "größe <&> 😀\r\n", MessageAttributes=attribute)
    assert sqs.send(url, "größe <&> 😀\r\n")["MessageId"] == first["MessageId"]
    identity = sha256("größe <&> 😀\r\n".encode()).hexdigest()
    assert sqs.put(url, "other", "g", identity)["MessageId"] == first["MessageId"]
    second = sqs.put(url, "größe <&> 😀\r\n", "g", "mine")
    one, two = sqs.get(url)
    assert one["Body"] == two["Body"] == "größe <&> 😀\r\n"
    assert one["MessageAttributes"] == attribute
    assert one["MD5OfMessageAttributes"] == first["MD5OfMessageAttributes"]
    for message, sent, expected in ((one, first, identity), (two, second, "mine")):
        assert message["Attributes"]["MessageDeduplicationId"] == expected
        assert message["Attributes"]["MessageGroupId"] == "g"
        assert message["Attributes"]["SequenceNumber"] == sent["SequenceNumber"]
        assert len(sent["SequenceNumber"]) == 20


@pytest.mark.promise("F7")
@pytest.mark.parametrize(("strict", "expected"), [("false", ["x", "x"]), ("true", ["x"])])
def test_the_same_content_under_another_id(sqs: Asking, strict: str, expected: list[str]) -> None:
    url = sqs.new_fifo(ContentBasedDeduplication="true", OnibusContentMatchesAnyId=strict)
    sqs.send(url, "x")
    sqs.put(url, "x", "g", "another")
    assert bodies(sqs.get(url)) == expected


@pytest.mark.promise("F9")
def test_attempts(sqs: Asking, passes: Passes) -> None:
    url = sqs.new_fifo(VisibilityTimeout="100")
    for n in range(4):
        sqs.put(url, str(n), f"g{n % 2}", str(n))
    attempt = {"ReceiveRequestAttemptId": "try"}
    first = sqs.get(url, 3, **attempt)
    passes(60)
    assert sqs.get(url, 3, **attempt) == first, "the same messages, handles and counts"
    passes(60)
    assert sqs.get(url, 3, ReceiveRequestAttemptId="other") == [], "their timeout began anew"
    passes(60)
    again = sqs.get(url, 3, **attempt)
    assert again[0]["Attributes"]["ApproximateReceiveCount"] == "2", "it was over: a fresh one"
    assert again[0]["ReceiptHandle"] != first[0]["ReceiptHandle"]
    sqs.delete(url, again[0])
    assert sqs.get(url, 3, **attempt) == [], "one was deleted, and the groups are in flight"


@pytest.mark.promise("F9")
def test_attempts_that_changed_where_that_is_an_error(sqs: Asking) -> None:
    url = sqs.new_fifo(OnibusStrictAttempts="true")
    sqs.put(url, "x", "g", "d")
    (message,) = sqs.get(url, ReceiveRequestAttemptId="try")
    sqs.hide(url, message, 60)
    code, text = refusal(sqs.ReceiveMessage, QueueUrl=url, ReceiveRequestAttemptId="try")
    assert code == "InvalidParameterValue"
    assert "not valid anymore since the receive call is not retryable" in text


@pytest.mark.promise("F10")
def test_groups(sqs: Asking, passes: Passes) -> None:
    url = sqs.new_fifo(VisibilityTimeout="30")
    for n in range(3):
        sqs.put(url, f"a{n}", "a", f"a{n}")
    sqs.put(url, "b0", "b", "b0")
    one, two = sqs.get(url, 2)
    assert bodies([one, two]) == ["a0", "a1"]
    assert bodies(sqs.get(url)) == ["b0"]
    sqs.delete(url, one)
    assert sqs.get(url) == [], "the group is blocked by what is left of it in flight"
    sqs.hide(url, two, 90)
    passes(60)
    assert bodies(sqs.get(url, VisibilityTimeout=0)) == ["b0"], "the longer timeout counts"
    passes(31)
    again = sqs.get(url)
    assert bodies(again) == ["a1", "a2", "b0"], "in order, though a1 was held for longest"
    assert refusal(sqs.DeleteMessage, QueueUrl=url, ReceiptHandle=two["ReceiptHandle"])[1].endswith(
        "The receipt handle has expired."
    )
    sqs.delete(url, *again)
    passes(31)
    assert sqs.get(url) == []
    url = sqs.new_fifo(OnibusOneMessagePerGroup="true")
    for n, group in enumerate("aab"):
        sqs.put(url, str(n), group, str(n))
    assert bodies(sqs.get(url)) == ["0", "2"]


def test_every_action(sqs: Asking, passes: Passes) -> None:
    sqs.asked.clear()
    morgue = sqs.CreateQueue(QueueName=new_name())["QueueUrl"]
    attributes_of = sqs.GetQueueAttributes
    arn = attributes_of(QueueUrl=morgue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    name = new_name()
    given = {"RedrivePolicy": policy, "VisibilityTimeout": "45"}
    url = sqs.CreateQueue(QueueName=name, Attributes=given, tags={"team": "a"})["QueueUrl"]
    assert sqs.GetQueueUrl(QueueName=name)["QueueUrl"] == url
    assert sqs.ListQueues(QueueNamePrefix=name)["QueueUrls"] == [url]
    assert sqs.ListDeadLetterSourceQueues(QueueUrl=morgue)["queueUrls"] == [url]
    _tags_and_permissions(sqs, url)
    _batches(sqs, url, passes)
    _moves(sqs, url, morgue, arn)
    sqs.PurgeQueue(QueueUrl=url)
    assert refusal(sqs.PurgeQueue, QueueUrl=url)[0] == f"{_SERVICE}PurgeQueueInProgress"
    sqs.DeleteQueue(QueueUrl=url)
    assert refusal(sqs.GetQueueUrl, QueueName=name) == (
        f"{_SERVICE}NonExistentQueue",
        "The specified queue does not exist.",
    )
    assert sqs.asked == set(ACTIONS)


def _tags_and_permissions(sqs: Asking, url: str) -> None:
    sqs.TagQueue(QueueUrl=url, Tags={"more": "größe"})
    assert sqs.ListQueueTags(QueueUrl=url)["Tags"] == {"team": "a", "more": "größe"}
    sqs.UntagQueue(QueueUrl=url, TagKeys=["team"])
    assert sqs.ListQueueTags(QueueUrl=url)["Tags"] == {"more": "größe"}
    permitted = {"AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}
    sqs.AddPermission(QueueUrl=url, Label="one", **permitted)
    told = sqs.GetQueueAttributes(QueueUrl=url, AttributeNames=["Policy", "VisibilityTimeout"])
    assert json.loads(told["Attributes"].pop("Policy"))["Statement"][0]["Sid"] == "one"
    assert told["Attributes"] == {"VisibilityTimeout": "45"}
    sqs.RemovePermission(QueueUrl=url, Label="one")
    sqs.SetQueueAttributes(QueueUrl=url, Attributes={"VisibilityTimeout": "50"})
    told = sqs.GetQueueAttributes(QueueUrl=url, AttributeNames=["Policy", "VisibilityTimeout"])
    assert told["Attributes"] == {"VisibilityTimeout": "50"}


def _batches(sqs: Asking, url: str, passes: Passes) -> None:
    entries: list[dict[str, Any]] = [
        {"Id": "a", "MessageBody": "now"},
        {"Id": "b", "MessageBody": "later", "DelaySeconds": 100},
        {"Id": "c", "MessageBody": "\x0b"},
    ]
    done = sqs.SendMessageBatch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in done["Successful"]] == ["a", "b"]
    assert [(one["Id"], one["Code"]) for one in done["Failed"]] == [("c", "InvalidMessageContents")]
    (message,) = sqs.get(url)
    assert message["Body"] == "now"
    passes(100)
    (late,) = sqs.get(url, WaitTimeSeconds=5)
    assert late["Body"] == "later"
    handles = [late["ReceiptHandle"], "nonsense"]
    entries = [
        {"Id": f"h{n}", "ReceiptHandle": one, "VisibilityTimeout": 60}
        for n, one in enumerate(handles)
    ]
    for action in (sqs.ChangeMessageVisibilityBatch, sqs.DeleteMessageBatch):
        done = action(QueueUrl=url, Entries=entries)
        assert [one["Id"] for one in done["Successful"]] == ["h0"]
        assert [one["Code"] for one in done["Failed"]] == ["ReceiptHandleIsInvalid"]
        entries = [{"Id": one["Id"], "ReceiptHandle": one["ReceiptHandle"]} for one in entries]


def _moves(sqs: Asking, url: str, morgue: str, arn: str) -> None:
    count = "ApproximateNumberOfMessages"

    def waiting(where: str) -> int:
        told = sqs.GetQueueAttributes(QueueUrl=where, AttributeNames=[count])
        return int(told["Attributes"][count])

    # That of the batch has outlived its timeout, and its last receive with it.
    wait_for(lambda: waiting(morgue) == 1)
    for n in range(3):
        sqs.SendMessage(QueueUrl=morgue, MessageBody=str(n))
    sqs.SendMessage(QueueUrl=url, MessageBody="bad")
    (message,) = sqs.get(url)
    sqs.hide(url, message, 0)
    sqs.DeleteMessage(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    wait_for(lambda: waiting(morgue) == 5)
    task = sqs.StartMessageMoveTask(
        SourceArn=arn,
        DestinationArn=arn.rpartition(":")[0] + ":" + url.rpartition("/")[2],
        MaxNumberOfMessagesPerSecond=1,
    )["TaskHandle"]
    (listed,) = sqs.ListMessageMoveTasks(SourceArn=arn)["Results"]
    assert (listed["Status"], listed["TaskHandle"]) == ("RUNNING", task)
    moved = sqs.CancelMessageMoveTask(TaskHandle=task)["ApproximateNumberOfMessagesMoved"]
    assert moved <= 2
    wait_for(lambda: sqs.ListMessageMoveTasks(SourceArn=arn)["Results"][0]["Status"] == "CANCELLED")
    assert waiting(morgue) + waiting(url) == 5
