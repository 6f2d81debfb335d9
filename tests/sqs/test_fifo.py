"""FIFO queues through boto3: deduplication, groups, attempts (F1–F10)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.processes import PATIENCE_S
from tests.sqs.clients import bodies, delete, get, new_fifo, put

EXPIRED = "Reason: The receipt handle has expired."


@pytest.mark.promise("F1")
def test_a_duplicate_is_answered_with_the_first_and_not_delivered(sqs: Any) -> None:
    url = new_fifo(sqs, OnibusPurgeForgetsIds="false")
    first = put(sqs, url, "one", "a", "same")
    second = put(sqs, url, "two", "b", "same")
    assert second["MessageId"] == first["MessageId"]
    assert second["SequenceNumber"] == first["SequenceNumber"]
    assert second["MD5OfMessageBody"] != first["MD5OfMessageBody"]
    (message,) = get(sqs, url)
    assert message["Body"] == "one"
    delete(sqs, url, message)
    third = put(sqs, url, "three", "a", "same")
    assert third["MessageId"] == first["MessageId"], "the memory outlives receive and delete"
    sqs.purge_queue(QueueUrl=url)
    assert put(sqs, url, "four", "a", "same")["MessageId"] == first["MessageId"]
    assert get(sqs, url) == []


@pytest.mark.promise("F1")
def test_a_purge_discards_ids_as_in_aws(sqs: Any) -> None:
    url = new_fifo(sqs)
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert not [name for name in told if name.startswith("Onibus")], "AWS has no such attribute"
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["OnibusPurgeForgetsIds"])
    assert told["Attributes"] == {"OnibusPurgeForgetsIds": "true"}
    put(sqs, url, "one", "a", "same")
    sqs.purge_queue(QueueUrl=url)
    put(sqs, url, "two", "a", "same")
    assert bodies(get(sqs, url)) == ["two"]


@pytest.mark.promise("F1")
def test_the_scope_is_the_queue_or_the_group(sqs: Any) -> None:
    url = new_fifo(sqs, DeduplicationScope="messageGroup")
    for group in ("a", "b", "a"):
        put(sqs, url, group, group, "same")
    assert bodies(get(sqs, url)) == ["a", "b"]


@pytest.mark.promise("F1")
def test_inside_a_batch_the_second_of_one_id_is_a_duplicate(sqs: Any) -> None:
    url = new_fifo(sqs)
    entries = [
        {
            "Id": f"e{n}",
            "MessageBody": str(n),
            "MessageGroupId": f"g{n}",
            "MessageDeduplicationId": "same",
        }
        for n in range(3)
    ]
    done = sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]
    assert [one["Id"] for one in done] == ["e0", "e1", "e2"]
    assert len({one["MessageId"] for one in done}) == 1
    assert bodies(get(sqs, url)) == ["0"]


@pytest.mark.promise("F2")
def test_without_a_group_or_an_id_the_sender_gets_an_error(sqs: Any) -> None:
    url = new_fifo(sqs)

    def error_of(call: Any, **given: Any) -> tuple[str, str]:
        with pytest.raises(ClientError) as error:
            call(QueueUrl=url, **given)
        return error.value.response["Error"]["Code"], error.value.response["Error"]["Message"]

    no_group = "The request must contain the parameter MessageGroupId."
    no_id = (
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId "
        "provided explicitly"
    )
    single = sqs.send_message
    assert error_of(single, MessageBody="x") == ("MissingParameter", no_group)
    assert error_of(single, MessageBody="x", MessageGroupId="g") == ("InvalidParameterValue", no_id)
    entries: list[dict[str, Any]] = [
        {"Id": "a", "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "1"},
        {"Id": "b", "MessageBody": "x"},
    ]
    batch = sqs.send_message_batch
    assert error_of(batch, Entries=entries) == ("InvalidParameterValue", no_group)
    entries[1]["MessageGroupId"] = "g"
    assert error_of(batch, Entries=entries) == ("InvalidParameterValue", no_id)
    code, text = error_of(
        single, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="no space"
    )
    assert code == "InvalidParameterValue"
    assert text == (
        "Value no space for parameter MessageDeduplicationId is invalid. Reason: "
        "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 "
        "in length."
    )
    code, text = error_of(
        single,
        MessageBody="x",
        MessageGroupId="g",
        MessageDeduplicationId="1",
        DelaySeconds=2,
    )
    assert text == (
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that "
        "is not valid for this queue type."
    )
    assert get(sqs, url) == []


@pytest.mark.promise("F4", "F6")
def test_content_gives_the_id(sqs: Any) -> None:
    url = new_fifo(sqs, ContentBasedDeduplication="true")
    for body, attribute in (("same", "1"), ("same", "2"), ("other", "1")):
        sqs.send_message(
            QueueUrl=url,
            MessageBody=body,
            MessageGroupId="g",
            MessageAttributes={"n": {"DataType": "Number", "StringValue": attribute}},
        )
    received = get(sqs, url, AttributeNames=["All"])
    assert bodies(received) == ["same", "other"]
    assert received[0]["Attributes"]["MessageDeduplicationId"] == sha256(b"same").hexdigest()


@pytest.mark.promise("F5")
def test_an_explicit_id_wins_over_the_content_and_shares_its_names(sqs: Any) -> None:
    url = new_fifo(sqs, ContentBasedDeduplication="true")
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
    put(sqs, url, "y", identity=sha256(b"x").hexdigest())
    put(sqs, url, "x", identity="another")
    assert bodies(get(sqs, url)) == ["x", "x"]


@pytest.mark.promise("F7")
@pytest.mark.parametrize(("strict", "delivered"), [("false", 2), ("true", 1)])
def test_equal_content_under_another_id(sqs: Any, strict: str, delivered: int) -> None:
    url = new_fifo(sqs, ContentBasedDeduplication="true", OnibusContentMatchesAnyId=strict)
    put(sqs, url, "x", identity="one")
    put(sqs, url, "x", identity="two")
    assert len(get(sqs, url)) == delivered


@pytest.mark.promise("F9")
def test_an_attempt_asked_again_returns_the_same_handles(sqs: Any) -> None:
    url = new_fifo(sqs)
    for n in range(4):
        put(sqs, url, str(n), f"g{n % 2}")
    first = get(sqs, url, 3, ReceiveRequestAttemptId="try", AttributeNames=["All"])
    again = get(sqs, url, 3, ReceiveRequestAttemptId="try", AttributeNames=["All"])
    assert bodies(first) == ["0", "2", "1"]
    assert again == first, "the same messages, handles and counts"
    assert get(sqs, url, 3, ReceiveRequestAttemptId="other") == []
    delete(sqs, url, *again)
    assert bodies(get(sqs, url, 3, ReceiveRequestAttemptId="try")) == ["3"], "a fresh receive"


@pytest.mark.promise("F9")
def test_a_generated_attempt_id_stands_in_a_header(sqs: Any) -> None:
    url = new_fifo(sqs)
    put(sqs, url, "x")
    first = sqs.receive_message(QueueUrl=url)
    attempt = first["ResponseMetadata"]["HTTPHeaders"]["x-onibus-attempt-id"]
    again = get(sqs, url, 1, ReceiveRequestAttemptId=attempt)
    assert again == first["Messages"]


@pytest.mark.promise("F9")
def test_a_changed_attempt_is_an_ordinary_receive_or_an_error(sqs: Any) -> None:
    for strict in ("false", "true"):
        url = new_fifo(sqs, OnibusStrictAttempts=strict)
        put(sqs, url, "1", "a")
        put(sqs, url, "2", "b")
        (message,) = get(sqs, url, 1, ReceiveRequestAttemptId="try")
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=60
        )
        if strict == "false":
            assert bodies(get(sqs, url, 1, ReceiveRequestAttemptId="try")) == ["2"]
            continue
        with pytest.raises(ClientError) as error:
            get(sqs, url, 1, ReceiveRequestAttemptId="try")
        assert error.value.response["Error"]["Code"] == "InvalidParameterValue"
        assert error.value.response["Error"]["Message"].endswith(
            "The receiveRequestAttemptId is not valid anymore since the receive call is not "
            "retryable."
        )


@pytest.mark.promise("F10")
def test_a_group_in_flight_gives_out_no_more(sqs: Any) -> None:
    url = new_fifo(sqs)
    for n in range(3):
        put(sqs, url, f"a{n}", "a")
    put(sqs, url, "b0", "b")
    received = get(sqs, url, 2)
    assert bodies(received) == ["a0", "a1"], "one group is filled up before the next"
    put(sqs, url, "a3", "a")
    assert bodies(get(sqs, url)) == ["b0"]
    delete(sqs, url, received[0])
    assert get(sqs, url) == [], "a partial delete frees nothing"
    delete(sqs, url, received[1])
    assert bodies(get(sqs, url)) == ["a2", "a3"]


@pytest.mark.promise("F10")
def test_order_after_visibility_ends_or_is_changed(sqs: Any) -> None:
    url = new_fifo(sqs)
    for body in "123":
        put(sqs, url, body)
    received = get(sqs, url, 3, VisibilityTimeout=60)
    # The first one last: those after it wait for it.
    for message in reversed(received):
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=1
        )
    again = get(sqs, url, 3, WaitTimeSeconds=10, AttributeNames=["All"])
    assert bodies(again) == ["1", "2", "3"]
    assert [one["Attributes"]["ApproximateReceiveCount"] for one in again] == ["2"] * 3
    with pytest.raises(ClientError) as error:
        delete(sqs, url, received[0])
    assert error.value.response["Error"]["Code"] == "InvalidParameterValue"
    assert error.value.response["Error"]["Message"].endswith(EXPIRED)
    delete(sqs, url, *again)
    assert get(sqs, url) == []
    delete(sqs, url, again[0])  # deleting again is no error


def test_visibility_zero_gives_a_message_back_at_once(sqs: Any) -> None:
    url = new_fifo(sqs)
    put(sqs, url, "x")
    (message,) = get(sqs, url)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(get, sqs, url, WaitTimeSeconds=20)
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
        assert bodies(waiting.result(PATIENCE_S)) == ["x"]
    assert len(get(sqs, new_fifo(sqs))) == 0


@pytest.mark.promise("F10")
def test_groups_under_many_receivers(sqs: Any) -> None:
    url = new_fifo(sqs)
    groups, count = 6, 25
    for n in range(count):
        entries = [
            {
                "Id": f"e{group}",
                "MessageBody": f"{group} {n}",
                "MessageGroupId": f"g{group}",
                "MessageDeduplicationId": f"{group}-{n}",
            }
            for group in range(groups)
        ]
        assert "Failed" not in sqs.send_message_batch(QueueUrl=url, Entries=entries)
    seen: dict[str, list[int]] = {str(group): [] for group in range(groups)}
    working: set[str] = set()

    def receiver(_: int) -> None:
        while messages := get(sqs, url, 3, WaitTimeSeconds=1):
            own = {message["Body"].split()[0] for message in messages}
            assert not own & working, "two receivers have messages of one group"
            working.update(own)
            for message in messages:
                group, n = message["Body"].split()
                seen[group].append(int(n))
            working.difference_update(own)
            delete(sqs, url, *messages)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(receiver, range(8)))
    assert seen == {str(group): list(range(count)) for group in range(groups)}
