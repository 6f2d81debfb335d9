"""The profile `yandex`: where Message Queue of Yandex differs, it is followed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.processes import served
from tests.sqs.clients import bodies, client_of, delete, get, new_fifo, new_name, new_queue, put


@pytest.fixture(scope="module")
def yandex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    data: Path = tmp_path_factory.mktemp("yandex") / "data"
    how = ("--sqs-profile", "yandex", "--sqs-account", "123456789012", "--log-level", "error")
    with served("--data", data, *how) as one:
        yield client_of(one.ready["sqs"], region_name="ru-central1")


@pytest.mark.promise("F10")
def test_one_message_of_a_group_at_a_time(yandex: Any) -> None:
    url = new_fifo(yandex)
    for body, group in (("1", "a"), ("2", "a"), ("3", "b")):
        put(yandex, url, body, group)
    received = get(yandex, url)
    assert bodies(received) == ["1", "3"]
    delete(yandex, url, *received)
    assert bodies(get(yandex, url)) == ["2"]


def test_names_and_sizes(yandex: Any) -> None:
    url = new_queue(yandex)
    assert "/123456789012/" in url
    told = yandex.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    name = url.rpartition("/")[2]
    assert told["QueueArn"] == f"yrn:yc:ymq:ru-central1:123456789012:{name}"
    assert told["MaximumMessageSize"] == "262144"


@pytest.mark.parametrize("name", ["DeduplicationScope", "FifoThroughputLimit"])
def test_attributes_of_high_throughput_are_unknown(yandex: Any, name: str) -> None:
    with pytest.raises(ClientError) as error:
        new_fifo(yandex, **{name: "queue" if name == "DeduplicationScope" else "perQueue"})
    assert error.value.response["Error"]["Message"] == f"Unknown Attribute {name}."


def test_an_expired_handle_is_no_error(yandex: Any) -> None:
    url = new_fifo(yandex)
    put(yandex, url, "x")
    (message,) = get(yandex, url, VisibilityTimeout=0)
    delete(yandex, url, message)
    assert bodies(get(yandex, url)) == ["x"], "and nothing was deleted"


@pytest.mark.promise("F2")
def test_an_incomplete_entry_fails_by_itself(yandex: Any) -> None:
    url = new_fifo(yandex)
    done = yandex.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "1"},
            {"Id": "b", "MessageBody": "x", "MessageDeduplicationId": "2"},
            {"Id": "c", "MessageBody": "x", "MessageGroupId": "g"},
        ],
    )
    assert [one["Id"] for one in done["Successful"]] == ["a"]
    assert {one["Id"]: (one["Code"], one["Message"]) for one in done["Failed"]} == {
        "b": ("MissingParameter", "No MessageGroupId parameter."),
        "c": ("MissingParameter", "No MessageDeduplicationId parameter."),
    }


def test_redrive_names_queues_as_this_service_does(yandex: Any) -> None:
    morgue = yandex.create_queue(QueueName=new_name("-morgue"))["QueueUrl"]
    told = yandex.get_queue_attributes(QueueUrl=morgue, AttributeNames=["QueueArn"])
    policy = f'{{"deadLetterTargetArn": "{told["Attributes"]["QueueArn"]}", "maxReceiveCount": 1}}'
    url = new_queue(yandex, RedrivePolicy=policy)
    yandex.send_message(QueueUrl=url, MessageBody="bad")
    get(yandex, url, VisibilityTimeout=0)
    assert bodies(get(yandex, morgue, WaitTimeSeconds=10)) == ["bad"]


@pytest.mark.promise("F7")
def test_equal_content_under_another_id_is_a_duplicate(yandex: Any) -> None:
    url = new_fifo(yandex, ContentBasedDeduplication="true")
    yandex.send_message(QueueUrl=url, MessageBody="same", MessageGroupId="a")
    put(yandex, url, "same", "b", "another")
    assert bodies(get(yandex, url)) == ["same"]
    told = yandex.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert "OnibusContentMatchesAnyId" not in told, "the service has no such attribute"
    off = new_fifo(yandex, ContentBasedDeduplication="true", OnibusContentMatchesAnyId="false")
    put(yandex, off, "same", "a", "one")
    put(yandex, off, "same", "b", "two")
    assert len(get(yandex, off)) == 2


@pytest.mark.promise("F7")
def test_a_whole_server_follows_the_rule_for_equal_content(tmp_path: Path) -> None:
    with served("--data", tmp_path, "--sqs-content-matches-any-id") as one:
        sqs = client_of(one.ready["sqs"])
        # Switched on later, and off again: the rule goes with content-based deduplication.
        url = new_fifo(sqs)
        for value in ("true", "false", "true"):
            how = {"ContentBasedDeduplication": value}
            sqs.set_queue_attributes(QueueUrl=url, Attributes=how)
            names = ["OnibusContentMatchesAnyId"]
            told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)
            assert told.get("Attributes", {}).get(names[0], "false") == value
        sqs.send_message(QueueUrl=url, MessageBody="same", MessageGroupId="a")
        put(sqs, url, "same", "b", "another")
        assert bodies(get(sqs, url)) == ["same"]
