"""Queue URLs and ARNs of a different account name no queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.processes import served
from tests.sqs.clients import client_of, new_queue
from tests.sqs.signing import query_request, send

MISSING = "AWS.SimpleQueueService.NonExistentQueue"
OURS, OTHER = "000000000000", "111111111111"


def code_of(ask: Callable[..., Any], **given: Any) -> str:
    """Make a call that fails; return the error code."""
    with pytest.raises(ClientError) as refused:
        ask(**given)
    code: str = refused.value.response["Error"]["Code"]
    return code


#: All calls with a queue URL.
ASKED: dict[str, dict[str, Any]] = {
    "send_message": {"MessageBody": "x"},
    "send_message_batch": {"Entries": [{"Id": "1", "MessageBody": "x"}]},
    "receive_message": {},
    "delete_message": {"ReceiptHandle": "x"},
    "delete_message_batch": {"Entries": [{"Id": "1", "ReceiptHandle": "x"}]},
    "change_message_visibility": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
    "change_message_visibility_batch": {
        "Entries": [{"Id": "1", "ReceiptHandle": "x", "VisibilityTimeout": 1}]
    },
    "get_queue_attributes": {"AttributeNames": ["All"]},
    "set_queue_attributes": {"Attributes": {"DelaySeconds": "1"}},
    "list_dead_letter_source_queues": {},
    "list_queue_tags": {},
    "tag_queue": {"Tags": {"a": "b"}},
    "untag_queue": {"TagKeys": ["a"]},
    "add_permission": {"Label": "a", "AWSAccountIds": [OTHER], "Actions": ["SendMessage"]},
    "remove_permission": {"Label": "a"},
    "purge_queue": {},
    "delete_queue": {},
}


@pytest.mark.parametrize("call", ASKED)
def test_a_url_of_another_account_is_one_of_no_queue(sqs: Any, call: str) -> None:
    url = new_queue(sqs)
    for other in (url.replace(OURS, OTHER), url.replace(OURS, "queue"), url.replace(OURS, "")):
        assert code_of(getattr(sqs, call), QueueUrl=other, **ASKED[call]) == MISSING, other
    sqs.send_message(QueueUrl=url, MessageBody="still there")


def test_the_path_of_another_account_is_one_of_no_queue(sqs: Any, server: Any) -> None:
    endpoint = server.ready["sqs"]
    path = new_queue(sqs).removeprefix(endpoint)
    asked = send(query_request(endpoint, "GetQueueAttributes", path))
    assert asked.status_code == 200
    asked = send(query_request(endpoint, "GetQueueAttributes", path.replace(OURS, OTHER)))
    assert (asked.status_code, MISSING in asked.text) == (400, True)


def test_a_name_alone_is_one_of_our_account(sqs: Any) -> None:
    """AWS accepts a queue name as QueueUrl."""
    name = new_queue(sqs).rpartition("/")[2]
    assert sqs.send_message(QueueUrl=name, MessageBody="x")["MessageId"]


def test_the_owner_of_a_queue(sqs: Any) -> None:
    name = new_queue(sqs).rpartition("/")[2]
    assert sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=OURS)["QueueUrl"]
    asked = {"QueueName": name, "QueueOwnerAWSAccountId": OTHER}
    assert code_of(sqs.get_queue_url, **asked) == MISSING


def test_arns_of_another_account(sqs: Any) -> None:
    source, morgue = new_queue(sqs), new_queue(sqs)
    told = sqs.get_queue_attributes(QueueUrl=morgue, AttributeNames=["QueueArn"])
    arn = told["Attributes"]["QueueArn"]
    other = arn.replace(OURS, OTHER)

    def redrive(target: str) -> dict[str, Any]:
        policy = {"deadLetterTargetArn": target, "maxReceiveCount": 1}
        return {"QueueUrl": source, "Attributes": {"RedrivePolicy": json.dumps(policy)}}

    assert code_of(sqs.set_queue_attributes, **redrive(other)) == "InvalidParameterValue"
    allowed = {
        "redrivePermission": "byQueue",
        "sourceQueueArns": [f"arn:aws:sqs:us-east-1:{OTHER}:{source.rpartition('/')[2]}"],
    }
    attributes = {"RedriveAllowPolicy": json.dumps(allowed)}
    sqs.set_queue_attributes(QueueUrl=morgue, Attributes=attributes)
    assert code_of(sqs.set_queue_attributes, **redrive(arn)) == "InvalidParameterValue"
    allowed["sourceQueueArns"] = [f"arn:aws:sqs:us-east-1:{OURS}:{source.rpartition('/')[2]}"]
    attributes = {"RedriveAllowPolicy": json.dumps(allowed)}
    sqs.set_queue_attributes(QueueUrl=morgue, Attributes=attributes)
    sqs.set_queue_attributes(**redrive(arn))
    missing = "ResourceNotFoundException"
    assert code_of(sqs.start_message_move_task, SourceArn=other) == missing
    assert code_of(sqs.list_message_move_tasks, SourceArn=other) == missing
    given = {"SourceArn": arn, "DestinationArn": other}
    assert code_of(sqs.start_message_move_task, **given) == missing


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Any]:
    with served("--ephemeral", ONIBUS_SQS_ACCOUNT=OTHER) as server:
        yield client_of(server.ready["sqs"])


def test_the_account_is_the_one_that_is_set(elsewhere: Any) -> None:
    url = new_queue(elsewhere)
    assert f"/{OTHER}/" in url
    elsewhere.send_message(QueueUrl=url, MessageBody="x")
    assert code_of(elsewhere.purge_queue, QueueUrl=url.replace(OTHER, OURS)) == MISSING
