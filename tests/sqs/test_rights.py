"""Every action of SQS × every right: who may, does; who may not, is refused before anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from onibus.protocols.sqs.actions.table import ACTIONS
from onibus.protocols.sqs.move_tasks import handle_of
from onibus.security.rights import Right
from tests.server.processes import Served, served
from tests.sqs.clients import client_of
from tests.sqs.signing import json_request, send

SECRET = "a-secret-of-sufficient-length"
ARN = "arn:aws:sqs:eu-north-1:000000000000:mine"

CONFIG = f"""
[[keys]]
name = "root"
primary = "{SECRET}"
secondary = "{SECRET[::-1]}"
[[keys]]
name = "sender"
rights = ["Send"]
primary = "{SECRET}"
[[keys]]
name = "listener"
rights = ["Listen"]
primary = "{SECRET}"
[[keys]]
name = "manager"
rights = ["Manage"]
primary = "{SECRET}"
[[keys]]
name = "of-mine"
entity = "mine"
primary = "{SECRET}"
[queues.mine]
[queues.other]
"""

KEYS = {"sender": Right.SEND, "listener": Right.LISTEN, "manager": Right.MANAGE}

#: What each action is asked with; its queue is `mine`.
GIVEN: dict[str, dict[str, Any]] = {
    "CreateQueue": {"QueueName": "mine"},
    "GetQueueUrl": {"QueueName": "mine"},
    "ListQueues": {},
    "StartMessageMoveTask": {"SourceArn": ARN},
    "ListMessageMoveTasks": {"SourceArn": ARN},
    "CancelMessageMoveTask": {"TaskHandle": handle_of("t", ARN)},
}

#: The rights that are enough, as docs/sqs.md has them; Manage always is.
ENOUGH = {
    Right.SEND: {"SendMessage", "SendMessageBatch"},
    Right.LISTEN: {
        "ReceiveMessage",
        "DeleteMessage",
        "DeleteMessageBatch",
        "ChangeMessageVisibility",
        "ChangeMessageVisibilityBatch",
    },
}
ASKING = {
    "GetQueueUrl",
    "ListQueues",
    "GetQueueAttributes",
    "ListQueueTags",
    "ListDeadLetterSourceQueues",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with keys of all kinds."""
    folder: Path = tmp_path_factory.mktemp("rights")
    file = folder / "onibus.toml"
    file.write_text(CONFIG)
    with served("--config", file, "--data", folder / "data", "--log-level", "error") as one:
        yield one


def denied(server: Served, action: str, key: str, queue: str = "mine") -> bool:
    endpoint = server.ready["sqs"]
    given = {"QueueUrl": f"{endpoint}/000000000000/{queue}"} | GIVEN.get(action, {})
    body = json.dumps(given).replace("mine", queue)
    if action == "CancelMessageMoveTask":
        body = json.dumps({"TaskHandle": handle_of("t", ARN.replace("mine", queue))})
    response = send(json_request(endpoint, action, body, key=key, secret=SECRET))
    assert response.status_code < 500
    return "AccessDenied" in response.headers.get("x-amzn-query-error", "")


def test_all_actions_are_known() -> None:
    assert len(ACTIONS) == 23
    assert set(GIVEN) | ASKING | ENOUGH[Right.SEND] | ENOUGH[Right.LISTEN] <= set(ACTIONS)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("action", [one for one in sorted(ACTIONS) if one != "DeleteQueue"])
def test_every_action_asks_for_its_right(guarded: Served, action: str, key: str) -> None:
    right = KEYS[key]
    may = right is Right.MANAGE or action in ENOUGH[right] or action in ASKING
    assert denied(guarded, action, key) is not may


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_a_key_of_one_queue_is_for_that_queue_only(guarded: Served, action: str) -> None:
    assert denied(guarded, action, "of-mine", "other")
    if action not in ("ListQueues", "DeleteQueue"):
        assert not denied(guarded, action, "of-mine")


def test_deleting_a_queue_asks_for_manage(guarded: Served) -> None:
    assert denied(guarded, "DeleteQueue", "sender")
    assert denied(guarded, "DeleteQueue", "listener")
    assert not denied(guarded, "DeleteQueue", "manager", "no-such-queue")


def test_moving_asks_for_both_queues(guarded: Served) -> None:
    sqs = client_of(guarded.ready["sqs"], "manager", SECRET)
    morgue = sqs.create_queue(QueueName="morgue")["QueueUrl"]
    policy = {"deadLetterTargetArn": ARN.replace("mine", "morgue"), "maxReceiveCount": 1}
    sqs.set_queue_attributes(
        QueueUrl=sqs.get_queue_url(QueueName="other")["QueueUrl"],
        Attributes={"RedrivePolicy": json.dumps(policy)},
    )
    own = client_of(guarded.ready["sqs"], "of-mine", SECRET)
    with pytest.raises(ClientError) as error:
        own.start_message_move_task(SourceArn=policy["deadLetterTargetArn"])
    assert error.value.response["Error"]["Code"] == "AccessDenied"
    sqs.start_message_move_task(SourceArn=policy["deadLetterTargetArn"])
    sqs.delete_queue(QueueUrl=morgue)


def test_sending_dead_letters_to_a_queue_asks_for_that_queue(guarded: Served) -> None:
    own = client_of(guarded.ready["sqs"], "of-mine", SECRET)
    url = own.get_queue_url(QueueName="mine")["QueueUrl"]
    # A queue that is not there is refused the same way: nobody learns what there is.
    for target in ("other", "OTHER", "no-such-queue"):
        policy = {"deadLetterTargetArn": ARN.replace("mine", target), "maxReceiveCount": 1}
        attributes = {"RedrivePolicy": json.dumps(policy)}
        with pytest.raises(ClientError) as error:
            own.set_queue_attributes(QueueUrl=url, Attributes=attributes)
        assert error.value.response["Error"]["Code"] == "AccessDenied"
    told = own.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    assert "Attributes" not in told


def test_both_keys_of_a_name_sign_and_the_development_pair_does_not(guarded: Served) -> None:
    endpoint = guarded.ready["sqs"]
    for secret, good in ((SECRET, True), (SECRET[::-1], True), ("SAS_KEY_VALUE", False)):
        response = send(json_request(endpoint, "ListQueues", "{}", key="root", secret=secret))
        assert (response.status_code == 200) is good
    # A configured key means that strangers may come: the pair that everybody knows is refused.
    response = send(json_request(endpoint, "ListQueues", "{}"))
    assert response.status_code == 403


def test_a_server_that_asks_for_nothing_takes_requests_without_a_signature(tmp_path: Path) -> None:
    with served("--data", tmp_path / "data", "--insecure", "--log-level", "error") as one:
        sqs = client_of(one.ready["sqs"], "anybody", "anything")
        sqs.create_queue(QueueName="open")
        request = json_request(one.ready["sqs"], "ListQueues", "{}")
        headers = dict(request.headers.items()) | {"Origin": "http://elsewhere.example"}
        assert send(request, headers=headers).status_code == 403, "not for the pages of others"
