"""boto3 with nothing changed but its endpoint: queues, attributes, messages of both kinds."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.sqs.clients import bodies, delete, get, new_fifo, new_name, new_queue, put


def refused(call: Any, **given: Any) -> dict[str, Any]:
    """Return the error that a call ends with."""
    with pytest.raises(ClientError) as error:
        call(**given)
    found: dict[str, Any] = error.value.response["Error"]
    return found


@pytest.mark.promise("F3")
def test_a_message_comes_back_with_its_id_group_and_number(sqs: Any) -> None:
    url = new_fifo(sqs)
    sent = put(sqs, url, "hello", "customer", "order-1")
    (message,) = get(sqs, url, AttributeNames=["All"])
    assert message["Body"] == "hello"
    assert message["MessageId"] == sent["MessageId"]
    assert message["Attributes"]["MessageGroupId"] == "customer"
    assert message["Attributes"]["MessageDeduplicationId"] == "order-1"
    assert message["Attributes"]["SequenceNumber"] == sent["SequenceNumber"]
    assert len(sent["SequenceNumber"]) == 20
    delete(sqs, url, message)
    assert bodies(get(sqs, url)) == []


def test_a_queue_is_made_once_and_found_listed_and_deleted(sqs: Any) -> None:
    name = new_name()
    made = sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "1"}, tags={"a": "b"})
    url = made["QueueUrl"]
    assert url.endswith(f"/000000000000/{name}")
    assert url.startswith(sqs.meta.endpoint_url)
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    error = refused(sqs.create_queue, QueueName=name, Attributes={"DelaySeconds": "2"})
    assert error["Code"] == "QueueAlreadyExists"
    assert error["QueryErrorCode"] == "QueueNameExists"
    assert error["Message"] == (
        "A queue already exists with the same name and a different value for attribute DelaySeconds"
    )
    with pytest.raises(sqs.exceptions.QueueNameExists):
        sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "2"})
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    assert sqs.list_queues(QueueNamePrefix=name)["QueueUrls"] == [url]
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="no-such")
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as gone:
        sqs.get_queue_url(QueueName=name)
    assert gone.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert gone.value.response["Error"]["Message"] == "The specified queue does not exist."


def test_queues_are_listed_page_by_page(sqs: Any) -> None:
    prefix = new_name("-page")
    urls = [sqs.create_queue(QueueName=f"{prefix}-{n}")["QueueUrl"] for n in range(5)]
    pages = sqs.get_paginator("list_queues").paginate(
        QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}
    )
    assert [page["QueueUrls"] for page in pages] == [urls[:2], urls[2:4], urls[4:]]
    for token in ("!!!", "nonsense", "é"):
        error = refused(sqs.list_queues, MaxResults=2, NextToken=token)
        assert error["Code"] == "InvalidParameterValue"


@pytest.mark.parametrize("name", ["-", "_both_", "UPPER-lower", "x" * 80, "a--b"])
def test_names_that_sqs_allows(sqs: Any, name: str) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    assert url.rpartition("/")[2] == name
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert bodies(get(sqs, url)) == ["x"]
    assert url in sqs.list_queues()["QueueUrls"]
    sqs.delete_queue(QueueUrl=url)


@pytest.mark.parametrize("name", ["a.b", "x" * 81, "a b", "a.fifo", "ä"])
def test_names_that_sqs_refuses(sqs: Any, name: str) -> None:
    assert refused(sqs.create_queue, QueueName=name)["Code"] == "InvalidParameterValue"


def test_attributes_are_told_and_changed(sqs: Any) -> None:
    url = new_fifo(sqs, ContentBasedDeduplication="true", VisibilityTimeout="43200")
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    name = url.rpartition("/")[2]
    assert told["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name}"
    expected = {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "true",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
        "VisibilityTimeout": "43200",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
    }
    assert expected.items() <= told.items()
    assert abs(int(told["CreatedTimestamp"]) - time.time()) < 60
    assert set(told) == set(expected) | {"QueueArn", "CreatedTimestamp", "LastModifiedTimestamp"}
    changes = {
        "VisibilityTimeout": "7",
        "MaximumMessageSize": "1024",
        "MessageRetentionPeriod": "60",
        "ReceiveMessageWaitTimeSeconds": "1",
        "DelaySeconds": "2",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
        "Policy": json.dumps({"Version": "2012-10-17", "Statement": []}),
        "KmsMasterKeyId": "alias/x",
        "OnibusStrictAttempts": "true",
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes=changes)
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert changes.items() <= told.items()
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": "", "KmsMasterKeyId": ""})
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert not {"Policy", "KmsMasterKeyId"} & set(told)
    one = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["DelaySeconds"])["Attributes"]
    assert one == {"DelaySeconds": "2"}
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)


def test_the_visibility_timeout_of_a_standard_queue_goes_beyond_a_lock(sqs: Any) -> None:
    url = new_queue(sqs, VisibilityTimeout="40000")
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert told["Attributes"] == {"VisibilityTimeout": "40000"}
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert len(get(sqs, url)) == 1
    assert get(sqs, url) == []


@pytest.mark.parametrize(
    ("attributes", "code", "text"),
    [
        ({"DelaySeconds": "901"}, "InvalidAttributeValue", "Invalid value for the parameter Del"),
        ({"DelaySeconds": "x"}, "InvalidAttributeValue", "Invalid value for the parameter Delay"),
        ({"MaximumMessageSize": "1023"}, "InvalidAttributeValue", "MaximumMessageSize"),
        ({"MaximumMessageSize": "1048577"}, "InvalidAttributeValue", "MaximumMessageSize"),
        ({"Nonsense": "1"}, "InvalidAttributeName", "Unknown Attribute Nonsense."),
        ({"QueueArn": "x"}, "InvalidAttributeName", "Unknown Attribute QueueArn."),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName", "Unknown Attribute"),
        (
            {"DeduplicationScope": "queue"},
            "InvalidAttributeName",
            "You can specify the DeduplicationScope only when FifoQueue is set to true.",
        ),
        ({"FifoQueue": "false"}, "InvalidAttributeValue", "FifoQueue"),
        ({"Policy": "no json"}, "InvalidAttributeValue", "Policy"),
    ],
)
def test_attributes_that_are_refused(
    sqs: Any, attributes: dict[str, str], code: str, text: str
) -> None:
    error = refused(sqs.create_queue, QueueName=new_name(), Attributes=attributes)
    assert error["Code"] == code
    assert text in error["Message"]


def test_the_kind_of_a_queue_cannot_be_changed(sqs: Any) -> None:
    error = refused(
        sqs.set_queue_attributes, QueueUrl=new_fifo(sqs), Attributes={"FifoQueue": "false"}
    )
    assert error["Message"] == (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )


def test_attributes_of_messages_come_back_as_they_went(sqs: Any) -> None:
    url = new_queue(sqs)
    given = {
        "text": {"DataType": "String", "StringValue": "x & <y>\r\n"},
        "whole": {"DataType": "Number", "StringValue": "-12"},
        "spelled": {"DataType": "Number", "StringValue": "007.50"},
        "real": {"DataType": "Number", "StringValue": "1.5"},
        "huge": {"DataType": "Number", "StringValue": "123456789012345678901234567890"},
        "labelled": {"DataType": "Number.int", "StringValue": "3"},
        "data": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "picture": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"},
        "custom.one": {"DataType": "String.uuid", "StringValue": "u"},
        # What the bus adds to dead letters is called so, too.
        "DeadLetterReason": {"DataType": "String", "StringValue": "mine"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988"}}
    sent = sqs.send_message(
        QueueUrl=url, MessageBody="b", MessageAttributes=given, MessageSystemAttributes=trace
    )
    assert len(sent["MD5OfMessageAttributes"]) == len(sent["MD5OfMessageSystemAttributes"]) == 32
    (message,) = get(
        sqs,
        url,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["All"],
        VisibilityTimeout=0,
    )
    assert message["MessageAttributes"] == given
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == md5(b"b").hexdigest()
    assert message["Attributes"]["AWSTraceHeader"] == "Root=1-5759e988"
    assert message["Attributes"]["SenderId"] == "000000000000"
    (message,) = get(sqs, url, MessageAttributeNames=["custom.*", "text"])
    assert set(message["MessageAttributes"]) == {"custom.one", "text"}
    assert message["MD5OfMessageAttributes"] != sent["MD5OfMessageAttributes"]
    assert "Attributes" not in message


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ({"DataType": "String", "StringValue": ""}, "must contain a non-empty value of type"),
        ({"DataType": "Strange", "StringValue": "x"}, "invalid message attribute type"),
        ({"DataType": "Number", "StringValue": "x"}, "to a number"),
        ({"DataType": "Binary", "StringValue": "x"}, "must contain a non-empty value of type"),
    ],
)
def test_attributes_of_messages_that_are_refused(
    sqs: Any, attribute: dict[str, str], text: str
) -> None:
    url = new_queue(sqs)
    error = refused(
        sqs.send_message, QueueUrl=url, MessageBody="x", MessageAttributes={"a": attribute}
    )
    assert error["Code"] == "InvalidParameterValue"
    assert text in error["Message"]
    assert get(sqs, url) == []


@pytest.mark.parametrize("name", ["AWS.x", "Amazon.x", ".a", "a..b", "a b", "x" * 257])
def test_names_of_attributes_that_are_refused(sqs: Any, name: str) -> None:
    given = {name: {"DataType": "String", "StringValue": "x"}}
    error = refused(
        sqs.send_message, QueueUrl=new_queue(sqs), MessageBody="x", MessageAttributes=given
    )
    assert error["Code"] == "InvalidParameterValue"


def test_bodies(sqs: Any) -> None:
    url = new_queue(sqs, MaximumMessageSize="1024")
    text = "ä€😀\t\r\n<&>\"'\\" + "x" * 100
    sqs.send_message(QueueUrl=url, MessageBody=text)
    assert bodies(get(sqs, url)) == [text]
    error = refused(sqs.send_message, QueueUrl=url, MessageBody="x" * 1025)
    assert error["Message"] == (
        "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."
    )
    assert refused(sqs.send_message, QueueUrl=url, MessageBody="\x0b")["Code"] == (
        "InvalidMessageContents"
    )
    error = refused(sqs.send_message, QueueUrl=url, MessageBody="")
    assert error["Code"] == "MissingParameter"
    largest = new_queue(sqs)
    sqs.send_message(QueueUrl=largest, MessageBody="€" * 349_525 + "x")
    assert len(bodies(get(sqs, largest))[0]) == 349_526


def test_batches_with_partial_failures(sqs: Any) -> None:
    url = new_queue(sqs, MaximumMessageSize="1024")
    done = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "good", "MessageBody": "1"},
            {"Id": "large", "MessageBody": "x" * 1025},
            {"Id": "bad", "MessageBody": "\x00"},
            {"Id": "late", "MessageBody": "2", "DelaySeconds": 900},
            {"Id": "wrong", "MessageBody": "3", "DelaySeconds": 901},
        ],
    )
    assert [one["Id"] for one in done["Successful"]] == ["good", "late"]
    failed = {one["Id"]: one for one in done["Failed"]}
    assert set(failed) == {"large", "bad", "wrong"}
    assert failed["large"]["SenderFault"] is True
    assert failed["large"]["Code"] == "InvalidParameterValue"
    assert failed["large"]["Message"] == (
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 "
        "bytes."
    )
    (message,) = get(sqs, url)
    assert message["MessageId"] == done["Successful"][0]["MessageId"]
    done = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": message["ReceiptHandle"]},
            {"Id": "b", "ReceiptHandle": "nonsense"},
        ],
    )
    assert [one["Id"] for one in done["Successful"]] == ["a"]
    assert done["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"


def test_batches_that_are_refused_whole(sqs: Any) -> None:
    url = new_queue(sqs)
    entry = {"Id": "a", "MessageBody": "x"}

    def batch(*entries: dict[str, Any]) -> tuple[str, str]:
        error = refused(sqs.send_message_batch, QueueUrl=url, Entries=list(entries))
        return error["Code"].removeprefix("AWS.SimpleQueueService."), error["Message"]

    assert batch() == (
        "EmptyBatchRequest",
        "There should be at least one SendMessageBatchRequestEntry in the request.",
    )
    assert batch(*[entry | {"Id": f"a{n}"} for n in range(11)]) == (
        "TooManyEntriesInBatchRequest",
        "Maximum number of entries per request are 10. You have sent 11.",
    )
    assert batch(entry, entry) == ("BatchEntryIdsNotDistinct", "Id a repeated.")
    assert batch(entry | {"Id": "no/good"})[0] == "InvalidBatchEntryId"
    large = "x" * 600_000
    assert batch(*[{"Id": f"a{n}", "MessageBody": large} for n in range(2)]) == (
        "BatchRequestTooLong",
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1200000 bytes.",
    )
    assert get(sqs, url) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"MaxNumberOfMessages": 11},
            "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and "
            "10, if provided.",
        ),
        (
            {"WaitTimeSeconds": 21},
            "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if "
            "provided.",
        ),
        ({"VisibilityTimeout": 43_201}, "Value 43201 for parameter VisibilityTimeout is invalid."),
        ({"ReceiveRequestAttemptId": "a b"}, "Value a b for parameter ReceiveRequestAttemptId"),
    ],
)
def test_receives_that_are_refused(sqs: Any, given: dict[str, Any], text: str) -> None:
    error = refused(sqs.receive_message, QueueUrl=new_fifo(sqs), **given)
    assert error["Code"] == "InvalidParameterValue"
    assert error["Message"].startswith(text)


def test_delays(sqs: Any) -> None:
    url = new_queue(sqs, DelaySeconds="900")
    sqs.send_message(QueueUrl=url, MessageBody="late")
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    sqs.send_message(QueueUrl=url, MessageBody="soon", DelaySeconds=5)
    assert bodies(get(sqs, url)) == ["now"]
    names = ["ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible"]
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert list(told.values()) in (["1", "2"], ["2", "1"])
    assert told[names[0]] == "2"
    assert bodies(get(sqs, url, WaitTimeSeconds=20)) == ["soon"]


def test_a_delayed_fifo_queue_keeps_numbers_and_order(sqs: Any) -> None:
    url = new_fifo(sqs, DelaySeconds="5")
    sent = [put(sqs, url, body)["SequenceNumber"] for body in "123"]
    assert get(sqs, url) == []
    numbers: list[str] = []
    while len(numbers) < len(sent):
        some = get(sqs, url, WaitTimeSeconds=20, AttributeNames=["SequenceNumber"])
        assert some, f"after {numbers} nothing comes any more"
        numbers += [message["Attributes"]["SequenceNumber"] for message in some]
        delete(sqs, url, *some)
    assert numbers == sent


def test_tags(sqs: Any) -> None:
    url = new_queue(sqs)
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)
    sqs.tag_queue(QueueUrl=url, Tags={"team": "a", "empty": ""})
    sqs.tag_queue(QueueUrl=url, Tags={"team": "b"})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "b", "empty": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["empty", "never"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "b"}
    error = refused(sqs.tag_queue, QueueUrl=url, Tags={f"t{n}": "x" for n in range(51)})
    assert error["Code"] == "InvalidParameterValue"


def test_several_may_change_one_queue_at_once(sqs: Any) -> None:
    name = new_name("-changed")
    with ThreadPoolExecutor(8) as pool:
        urls = set(pool.map(lambda _: sqs.create_queue(QueueName=name)["QueueUrl"], range(8)))
        assert len(urls) == 1
        (url,) = urls
        list(pool.map(lambda n: sqs.tag_queue(QueueUrl=url, Tags={f"t{n}": "x"}), range(16)))
    assert len(sqs.list_queue_tags(QueueUrl=url)["Tags"]) == 16, "none is lost"
    with ThreadPoolExecutor(2) as pool:
        tagged = pool.submit(sqs.tag_queue, QueueUrl=url, Tags={"last": "x"})
        sqs.delete_queue(QueueUrl=url)
        assert tagged.exception(20) is None or isinstance(tagged.exception(), ClientError)


def test_permissions(sqs: Any) -> None:
    url = new_queue(sqs)
    given: dict[str, Any] = {"QueueUrl": url, "AWSAccountIds": ["111111111111"]}
    sqs.add_permission(**given, Label="one", Actions=["SendMessage"])
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    policy = json.loads(told["Policy"])
    assert policy["Version"] == "2008-10-17"
    assert policy["Id"] == told["QueueArn"] + "/SQSDefaultPolicy"
    assert policy["Statement"][0]["Sid"] == "one"
    assert policy["Statement"][0]["Action"] == "SQS:SendMessage"
    error = refused(sqs.add_permission, **given, Label="one", Actions=["*"])
    assert error["Message"] == "Value one for parameter Label is invalid. Reason: Already exists."
    error = refused(sqs.remove_permission, QueueUrl=url, Label="two")
    assert error["Message"] == "Value two for parameter Label is invalid. Reason: can't find label."
    eight = [*["SendMessage"] * 8]
    assert refused(sqs.add_permission, **given, Label="x", Actions=eight)["Code"] == "OverLimit"
    sqs.remove_permission(QueueUrl=url, Label="one")
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert "Policy" not in told


def test_a_purge_takes_everything(sqs: Any) -> None:
    url = new_queue(sqs)
    for body in "123":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    sqs.send_message(QueueUrl=url, MessageBody="4", DelaySeconds=1)
    (held,) = get(sqs, url, 1)
    sqs.purge_queue(QueueUrl=url)
    assert get(sqs, url, WaitTimeSeconds=2) == []
    delete(sqs, url, held)
    error = refused(sqs.purge_queue, QueueUrl=url)
    assert error["Code"] == "AWS.SimpleQueueService.PurgeQueueInProgress"
    name = url.rpartition("/")[2]
    assert error["Message"] == (
        f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
    )
