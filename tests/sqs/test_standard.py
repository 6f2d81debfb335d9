"""Standard queues through boto3: visibility, receipt handles, dead-letter queues, move tasks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.processes import wait_for
from tests.sqs.clients import bodies, delete, get, new_fifo, new_queue, put


def arn_of(sqs: Any, url: str) -> str:
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    arn: str = told["Attributes"]["QueueArn"]
    return arn


def policy_of(sqs: Any, url: str, count: Any = 1) -> str:
    return json.dumps({"deadLetterTargetArn": arn_of(sqs, url), "maxReceiveCount": count})


def error_of(call: Any, **given: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        call(**given)
    return error.value.response["Error"]["Code"], error.value.response["Error"]["Message"]


def fill(sqs: Any, url: str, *texts: str) -> list[str]:
    return [sqs.send_message(QueueUrl=url, MessageBody=text)["MessageId"] for text in texts]


def test_counts_and_times_of_receives(sqs: Any) -> None:
    url = new_queue(sqs)
    fill(sqs, url, "x")
    first, second = [
        get(sqs, url, VisibilityTimeout=0, AttributeNames=["All"])[0]["Attributes"]
        for _ in range(2)
    ]
    assert [one["ApproximateReceiveCount"] for one in (first, second)] == ["1", "2"]
    stamp = "ApproximateFirstReceiveTimestamp"
    assert first[stamp] == second[stamp]
    assert int(first["SentTimestamp"]) <= int(first[stamp])
    assert abs(int(first["SentTimestamp"]) / 1000 - time.time()) < 60


def test_a_handle_that_ran_out_still_deletes(sqs: Any) -> None:
    url = new_queue(sqs)
    fill(sqs, url, "x")
    (message,) = get(sqs, url, VisibilityTimeout=0)
    delete(sqs, url, message)
    assert get(sqs, url) == []
    delete(sqs, url, message)


def test_but_not_what_somebody_else_has_received_since(sqs: Any) -> None:
    url = new_queue(sqs)
    fill(sqs, url, "x")
    (old,) = get(sqs, url, VisibilityTimeout=0)
    (new,) = get(sqs, url)
    delete(sqs, url, old)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=new["ReceiptHandle"], VisibilityTimeout=0
    )
    assert bodies(get(sqs, url)) == ["x"]


def test_handles_that_are_refused(sqs: Any) -> None:
    url, other = new_queue(sqs), new_queue(sqs)
    fill(sqs, url, "x")
    (message,) = get(sqs, url)
    handle = message["ReceiptHandle"]
    for wrong in ("nonsense", "a" * 48, handle[:-1] + "!", handle[:-8] + "00000000"):
        code, text = error_of(sqs.delete_message, QueueUrl=url, ReceiptHandle=wrong)
        assert code == "ReceiptHandleIsInvalid"
        assert text == f'The input receipt handle "{wrong}" is not a valid receipt handle.'
    code, _ = error_of(sqs.delete_message, QueueUrl=other, ReceiptHandle=handle)
    assert code == "ReceiptHandleIsInvalid"
    change = sqs.change_message_visibility
    assert error_of(change, QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=43_200)[
        1
    ].endswith("Total VisibilityTimeout for the message is beyond the limit [43200 seconds]")
    change(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    delete(sqs, url, message)
    code, text = error_of(change, QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=5)
    assert code == "InvalidParameterValue"
    assert "Message does not exist or is not available for visibility timeout change." in text


def test_a_batch_of_visibilities(sqs: Any) -> None:
    url = new_queue(sqs)
    fill(sqs, url, "1", "2")
    one, two = get(sqs, url)
    done = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 0},
            {"Id": "b", "ReceiptHandle": "nonsense", "VisibilityTimeout": 0},
            {"Id": "c", "ReceiptHandle": two["ReceiptHandle"], "VisibilityTimeout": 43_201},
        ],
    )
    assert [entry["Id"] for entry in done["Successful"]] == ["a"]
    assert {entry["Id"] for entry in done["Failed"]} == {"b", "c"}
    assert bodies(get(sqs, url)) == [one["Body"]]


def test_ids_for_fifo_queues_are_refused_and_groups_are_not(sqs: Any) -> None:
    url = new_queue(sqs)
    code, text = error_of(
        sqs.send_message, QueueUrl=url, MessageBody="x", MessageDeduplicationId="a"
    )
    assert code == "InvalidParameterValue"
    assert text.endswith("The request include parameter that is not valid for this queue type.")
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="tenant")
    (message,) = get(sqs, url, AttributeNames=["All"], ReceiveRequestAttemptId="ignored")
    assert message["Attributes"]["MessageGroupId"] == "tenant"


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_a_message_received_too_often_goes_to_the_dead_letter_queue(sqs: Any, kind: str) -> None:
    make = new_queue if kind == "standard" else new_fifo
    morgue = make(sqs)
    url = make(sqs, RedrivePolicy=policy_of(sqs, morgue, "2"))
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    assert json.loads(told["Attributes"]["RedrivePolicy"]) == {
        "deadLetterTargetArn": arn_of(sqs, morgue),
        "maxReceiveCount": 2,
    }
    assert sqs.list_dead_letter_source_queues(QueueUrl=morgue)["queueUrls"] == [url]
    attributes = {"n": {"DataType": "Number", "StringValue": "1"}}
    identity = {} if kind == "standard" else {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sent = sqs.send_message(
        QueueUrl=url, MessageBody="bad", MessageAttributes=attributes, **identity
    )
    if kind == "fifo":
        # What the dead-letter queue remembers does not keep a dead letter out.
        put(sqs, morgue, "before", "g", "d")
        put(sqs, url, "next", "g")
        delete(sqs, morgue, *get(sqs, morgue))
    for _ in range(2):
        assert bodies(get(sqs, url, 1, VisibilityTimeout=0)) == ["bad"]
    expected = [] if kind == "standard" else ["next"]
    assert bodies(get(sqs, url, 1)) == expected, "its group goes on"
    (letter,) = get(
        sqs, morgue, WaitTimeSeconds=10, AttributeNames=["All"], MessageAttributeNames=["All"]
    )
    assert letter["MessageId"] == sent["MessageId"]
    assert letter["MessageAttributes"] == attributes
    assert letter["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, url)
    if kind == "fifo":
        assert letter["Attributes"]["MessageGroupId"] == "g"
        assert letter["Attributes"]["MessageDeduplicationId"] == "d"


def test_redrive_policies_that_are_refused(sqs: Any) -> None:
    morgue, fifo = new_queue(sqs), new_fifo(sqs)
    url = new_queue(sqs)

    def reason(policy: str) -> str:
        code, text = error_of(
            sqs.set_queue_attributes, QueueUrl=url, Attributes={"RedrivePolicy": policy}
        )
        assert code == "InvalidParameterValue"
        return text.partition("Reason: ")[2]

    assert reason(policy_of(sqs, fifo)).startswith("Dead-letter target must be same type")
    assert reason(policy_of(sqs, morgue, 0)).startswith("Invalid value for maxReceiveCount: 0")
    assert reason(policy_of(sqs, morgue, 1001)).startswith("Invalid value for maxReceiveCount")
    assert reason("{}").startswith("Redrive policy does not contain mandatory attribute")
    missing = policy_of(sqs, morgue).replace("queue-", "no-such-")
    assert reason(missing) == "Dead letter target does not exist."
    allow: dict[str, Any] = {"redrivePermission": "denyAll"}
    sqs.set_queue_attributes(QueueUrl=morgue, Attributes={"RedriveAllowPolicy": json.dumps(allow)})
    assert "not allowed" in reason(policy_of(sqs, morgue))
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": [arn_of(sqs, url)]}
    sqs.set_queue_attributes(QueueUrl=morgue, Attributes={"RedriveAllowPolicy": json.dumps(allow)})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy_of(sqs, morgue)})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert sqs.list_dead_letter_source_queues(QueueUrl=morgue)["queueUrls"] == []


def with_letters(sqs: Any, *texts: str, make: Any = new_queue) -> tuple[str, str]:
    """Return a queue, and its dead-letter queue with these messages."""
    morgue = make(sqs)
    url = make(sqs, RedrivePolicy=policy_of(sqs, morgue))
    for text in texts:
        if make is new_fifo:
            put(sqs, url, text)
        else:
            fill(sqs, url, text)
        get(sqs, url, 1, VisibilityTimeout=0)
    count = "ApproximateNumberOfMessages"

    def arrived() -> bool:
        told = sqs.get_queue_attributes(QueueUrl=morgue, AttributeNames=[count])
        return bool(told["Attributes"][count] == str(len(texts)))

    wait_for(arrived)
    return url, morgue


@pytest.mark.parametrize("make", [new_queue, new_fifo])
def test_a_move_task_brings_dead_letters_back(sqs: Any, make: Any) -> None:
    url, morgue = with_letters(sqs, "1", "2", "3", make=make)
    source = arn_of(sqs, morgue)
    handle = sqs.start_message_move_task(SourceArn=source)["TaskHandle"]
    assert handle

    def task() -> Any:
        return sqs.list_message_move_tasks(SourceArn=source)["Results"][0]

    wait_for(lambda: task()["Status"] == "COMPLETED")
    assert task()["ApproximateNumberOfMessagesMoved"] == 3
    assert task()["ApproximateNumberOfMessagesToMove"] == 3
    received = get(sqs, url, VisibilityTimeout=10, AttributeNames=["All"])
    assert sorted(bodies(received)) == ["1", "2", "3"]
    assert received[0]["Attributes"]["ApproximateReceiveCount"] == "1"
    assert "DeadLetterQueueSourceArn" not in received[0]["Attributes"]
    assert get(sqs, morgue) == []
    code, text = error_of(sqs.cancel_message_move_task, TaskHandle=handle)
    assert (code, text) == ("ResourceNotFoundException", "Task does not exist.")


def test_a_slow_move_task_runs_alone_and_can_be_cancelled(sqs: Any) -> None:
    # Half a minute of work: it runs while the test looks at it.
    letters = [f"{n:02}" for n in range(30)]
    _, morgue = with_letters(sqs, *letters)
    source, elsewhere = arn_of(sqs, morgue), new_queue(sqs)
    handle = sqs.start_message_move_task(
        SourceArn=source, DestinationArn=arn_of(sqs, elsewhere), MaxNumberOfMessagesPerSecond=1
    )["TaskHandle"]
    code, text = error_of(sqs.start_message_move_task, SourceArn=source)
    assert code == "InvalidParameterValue"
    assert text.startswith("There is already a task running.")
    (running,) = sqs.list_message_move_tasks(SourceArn=source)["Results"]
    assert running["Status"] == "RUNNING"
    assert running["TaskHandle"] == handle
    assert running["MaxNumberOfMessagesPerSecond"] == 1
    assert running["DestinationArn"] == arn_of(sqs, elsewhere)
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    assert moved < 30

    def status() -> str:
        (one,) = sqs.list_message_move_tasks(SourceArn=source)["Results"]
        return str(one["Status"])

    wait_for(lambda: status() == "CANCELLED")
    found: list[str] = []
    for queue in (elsewhere, morgue):
        while some := get(sqs, queue):
            found += bodies(some)
    assert sorted(found) == letters, "none is lost, none comes twice"


def test_move_tasks_that_are_refused(sqs: Any) -> None:
    start = sqs.start_message_move_task
    url = new_queue(sqs)
    assert error_of(start, SourceArn=arn_of(sqs, url)) == (
        "InvalidParameterValue",
        "Source queue must be configured as a Dead Letter Queue.",
    )
    code, text = error_of(start, SourceArn="arn:aws:sqs:us-east-1:000000000000:no-such")
    assert code == "ResourceNotFoundException"
    assert text == "The resource that you specified for the SourceArn parameter doesn't exist."
    code, text = error_of(sqs.cancel_message_move_task, TaskHandle="nonsense")
    assert (code, text) == ("InvalidParameterValue", "Value for parameter TaskHandle is invalid.")


def test_a_move_task_without_a_way_back_fails_and_says_so(sqs: Any) -> None:
    _, morgue = with_letters(sqs)
    fill(sqs, morgue, "sent here")
    source = arn_of(sqs, morgue)
    sqs.start_message_move_task(SourceArn=source)

    def task() -> Any:
        return sqs.list_message_move_tasks(SourceArn=source)["Results"][0]

    wait_for(lambda: task()["Status"] == "FAILED")
    assert task()["FailureReason"] == "CouldNotDetermineMessageSource"
    assert bodies(get(sqs, morgue)) == ["sent here"]


@pytest.mark.parametrize("named", ["of another", "the right one"])
def test_a_move_task_does_not_follow_a_source_that_a_sender_made_up(sqs: Any, named: str) -> None:
    source_url, morgue = with_letters(sqs)
    victim = new_queue(sqs) if named == "of another" else source_url
    made_up = {
        "DeadLetterSource": {"DataType": "String", "StringValue": victim.rpartition("/")[2]},
        "DeadLetterSourceId": {"DataType": "Number", "StringValue": "1"},
    }
    sqs.send_message(QueueUrl=morgue, MessageBody="forged", MessageAttributes=made_up)
    source = arn_of(sqs, morgue)
    sqs.start_message_move_task(SourceArn=source)

    def task() -> Any:
        return sqs.list_message_move_tasks(SourceArn=source)["Results"][0]

    wait_for(lambda: task()["Status"] == "FAILED")
    assert task()["FailureReason"] == "CouldNotDetermineMessageSource"
    assert get(sqs, victim) == []
    (message,) = get(sqs, morgue, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert message["Body"] == "forged"
    assert message["MessageAttributes"] == made_up, "its sender's, like any other"
    assert "DeadLetterQueueSourceArn" not in message["Attributes"]


def test_a_move_task_keeps_to_its_rate(sqs: Any) -> None:
    _, morgue = with_letters(sqs, *[str(n) for n in range(8)])
    begun = time.monotonic()
    source = arn_of(sqs, morgue)
    sqs.start_message_move_task(SourceArn=source, MaxNumberOfMessagesPerSecond=4)

    def task() -> Any:
        return sqs.list_message_move_tasks(SourceArn=source)["Results"][0]

    wait_for(lambda: task()["Status"] == "COMPLETED")
    assert time.monotonic() - begun > 1.7, "eight messages, four a second"
    assert task()["ApproximateNumberOfMessagesMoved"] == 8
    (refusal, _) = error_of(
        sqs.start_message_move_task, SourceArn=source, MaxNumberOfMessagesPerSecond=501
    )
    assert refusal == "InvalidParameterValue"
