"""Clients of SQS as programs use them, and words for what tests do often."""

from __future__ import annotations

import itertools
from typing import Any

import boto3
from botocore.config import Config

_numbers = itertools.count(1)


def client_of(endpoint: str, key: str = "test", secret: str = "test", **how: Any) -> Any:
    """Return boto3's client of an endpoint, which does not try again by itself."""
    return boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name=how.pop("region_name", "us-east-1"),
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        verify=how.pop("verify", None),
        config=Config(retries={"max_attempts": 0}, max_pool_connections=64, proxies={}, **how),
    )


def new_name(suffix: str = "") -> str:
    """Return a name that no other queue of this run has."""
    return f"queue-{next(_numbers)}{suffix}"


def new_fifo(sqs: Any, **attributes: str) -> str:
    """Make a FIFO queue; return its URL."""
    attributes = {"FifoQueue": "true", **attributes}
    url: str = sqs.create_queue(QueueName=new_name(".fifo"), Attributes=attributes)["QueueUrl"]
    return url


def new_queue(sqs: Any, **attributes: str) -> str:
    """Make a standard queue; return its URL."""
    url: str = sqs.create_queue(QueueName=new_name(), Attributes=attributes)["QueueUrl"]
    return url


def put(sqs: Any, url: str, body: str, group: str = "g", identity: str | None = None) -> Any:
    """Send to a FIFO queue, under an id of its own unless one is given."""
    return sqs.send_message(
        QueueUrl=url,
        MessageBody=body,
        MessageGroupId=group,
        MessageDeduplicationId=identity or f"id-{next(_numbers)}",
    )


def get(sqs: Any, url: str, count: int = 10, **how: Any) -> list[Any]:
    """Receive what is visible."""
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **how)
    messages: list[Any] = received.get("Messages", [])
    return messages


def bodies(messages: list[Any]) -> list[str]:
    return [message["Body"] for message in messages]


def delete(sqs: Any, url: str, *messages: Any) -> None:
    for message in messages:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
