"""Receives that wait: how long, what ends them, and attempts whose visibility timeout expired.

The server's clock does not move, so only what a test does ends a wait.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.bus_helpers import run, until_not_waited_for
from tests.sqs.clients import bodies
from tests.sqs.signing import json_request
from tests.sqs.still_clock import World, world


async def fifo(one: World) -> str:
    """Make a FIFO queue; return its URL."""
    given = {"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}}
    return str((await one.ask("create_queue", **given))["QueueUrl"])


async def put(one: World, url: str, body: str) -> None:
    """Send to one group of a FIFO queue."""
    how = {"MessageGroupId": "g", "MessageDeduplicationId": body}
    await one.ask("send_message", QueueUrl=url, MessageBody=body, **how)


async def waiting(one: World, url: str, **how: Any) -> asyncio.Task[list[Any]]:
    """Start a receive; return it once it waits."""
    # Receives before it are durable, so no commit wakes this one.
    await one.pass_seconds(0)
    receiving = asyncio.create_task(one.receive(url, **how))
    await one.until_waited_for(url.rpartition("/")[2])
    return receiving


@run
async def test_a_message_wakes_a_receive() -> None:
    async with world() as one:
        url = (await one.ask("create_queue", QueueName="q"))["QueueUrl"]
        receiving = await waiting(one, url, WaitTimeSeconds=20)
        await one.ask("send_message", QueueUrl=url, MessageBody="x")
        assert bodies(await receiving) == ["x"]


@run
async def test_a_delete_wakes_a_receive_that_waits_for_the_group() -> None:
    async with world() as one:
        url = await fifo(one)
        await put(one, url, "1")
        await put(one, url, "2")
        (held,) = await one.receive(url, MaxNumberOfMessages=1)
        receiving = await waiting(one, url, WaitTimeSeconds=20)
        await one.ask("delete_message", QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])
        assert bodies(await receiving) == ["2"]


@run
async def test_the_deletion_of_a_queue_ends_a_receive() -> None:
    async with world() as one:
        url = await fifo(one)
        receiving = await waiting(one, url, WaitTimeSeconds=20)
        await one.ask("delete_queue", QueueUrl=url)
        with pytest.raises(ClientError) as error:
            await receiving
        assert error.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"


@run
async def test_a_client_that_hangs_up_takes_no_message() -> None:
    async with world() as one:
        url = await fifo(one)
        address = one.client.meta.endpoint_url
        content = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20})
        request = json_request(address, "ReceiveMessage", content)
        host, _, port = address.removeprefix("http://").partition(":")
        body = request.data.encode()
        lines = [f"{name}: {value}" for name, value in request.headers.items()]
        head = ["POST / HTTP/1.1", f"Host: {host}:{port}", f"Content-Length: {len(body)}"]
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write("\r\n".join([*head, *lines, "", ""]).encode() + body)
        await one.until_waited_for("q.fifo")
        writer.close()
        await until_not_waited_for(one.bus, "q.fifo")
        await put(one, url, "x")
        assert bodies(await one.receive(url)) == ["x"]


@run
async def test_the_receive_or_the_queue_says_how_long_to_wait() -> None:
    async with world() as one:
        seconds = {"ReceiveMessageWaitTimeSeconds": "1"}
        created = await one.ask("create_queue", QueueName="q", Attributes=seconds)
        url, entity = created["QueueUrl"], one.bus.broker.find("q")
        for how, longest in (({}, 1), ({"WaitTimeSeconds": 2}, 2)):
            receiving = await waiting(one, url, **how)
            await one.pass_seconds(longest - 1)
            assert entity.waiters, "it has not waited long enough"
            await one.pass_seconds(1)
            assert await receiving == []
        assert await one.receive(url, WaitTimeSeconds=0) == []


@run
@pytest.mark.promise("F9")
async def test_an_attempt_whose_visibility_timeout_expired_is_an_ordinary_receive() -> None:
    async with world() as one:
        url = await fifo(one)
        await put(one, url, "x")

        async def receive(seconds: int) -> Any:
            how = {"ReceiveRequestAttemptId": "try", "AttributeNames": ["All"]}
            (message,) = await one.receive(url, VisibilityTimeout=seconds, **how)
            return message

        first, second = await receive(0), await receive(30)
        assert first["ReceiptHandle"] != second["ReceiptHandle"]
        assert second["Attributes"]["ApproximateReceiveCount"] == "2"
        assert await receive(1) == second, "again, and for a second from now"
        assert await one.receive(url, ReceiveRequestAttemptId="other") == []
        await one.pass_seconds(1)
        third = await receive(30)
        assert third["ReceiptHandle"] != second["ReceiptHandle"]
        assert third["Attributes"]["ApproximateReceiveCount"] == "3"
