"""ChangeMessageVisibility: stored, seen by receivers that wait, and accepted late."""

from __future__ import annotations

import asyncio

import pytest
from botocore.exceptions import ClientError

from onibus.protocols.sqs.profile import AWS, YANDEX, Profile
from tests.bus_helpers import Disks, ManualClock, run
from tests.sqs.still_clock import world


@run
@pytest.mark.promise("B8")
async def test_a_changed_visibility_timeout_outlives_a_restart() -> None:
    disks, clock = Disks(), ManualClock()
    async with world(disks, clock) as one:
        url = (await one.ask("create_queue", QueueName="q"))["QueueUrl"]
        for body in ("shown", "hidden"):
            await one.ask("send_message", QueueUrl=url, MessageBody=body)
        held = {m["Body"]: m["ReceiptHandle"] for m in await one.receive(url)}
        for body, seconds in (("shown", 0), ("hidden", 600)):
            how = {"ReceiptHandle": held[body], "VisibilityTimeout": seconds}
            await one.ask("change_message_visibility", QueueUrl=url, **how)
    async with world(disks, clock) as one:
        url = (await one.ask("get_queue_url", QueueName="q"))["QueueUrl"]
        assert [m["Body"] for m in await one.receive(url)] == ["shown"]
        # The timeout of the receive, 30 seconds, is over; the changed one is not.
        await one.pass_seconds(599)
        assert [m["Body"] for m in await one.receive(url)] == ["shown"]
        await one.pass_seconds(1)
        assert [m["Body"] for m in await one.receive(url)] == ["hidden"]


@run
@pytest.mark.promise("P6")
async def test_a_receiver_that_waits_gets_a_message_that_became_visible() -> None:
    async with world() as one:
        url = (await one.ask("create_queue", QueueName="q"))["QueueUrl"]
        await one.ask("send_message", QueueUrl=url, MessageBody="m")
        (held,) = await one.receive(url)
        # The receive is durable, so its commit wakes no receiver later.
        await one.pass_seconds(0)
        waiting = asyncio.create_task(one.receive(url, WaitTimeSeconds=20))
        await one.until_waited_for("q")
        how = {"ReceiptHandle": held["ReceiptHandle"], "VisibilityTimeout": 0}
        await one.ask("change_message_visibility", QueueUrl=url, **how)
        # The clock does not move, so the receiver does not stop waiting.
        assert [m["Body"] for m in await waiting] == ["m"]


@pytest.mark.parametrize("profile", [AWS, YANDEX], ids=["aws", "yandex"])
@run
async def test_a_late_change_of_visibility_is_accepted_and_changes_nothing(
    profile: Profile,
) -> None:
    async with world(profile=profile) as one:
        url = (await one.ask("create_queue", QueueName="q"))["QueueUrl"]
        await one.ask("send_message", QueueUrl=url, MessageBody="m")
        (first,) = await one.receive(url)
        await one.pass_seconds(30)
        late = {"ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 600}
        await one.ask("change_message_visibility", QueueUrl=url, **late)
        batch = {"Entries": [{"Id": "e", **late}]}
        told = await one.ask("change_message_visibility_batch", QueueUrl=url, **batch)
        assert "Failed" not in told
        (second,) = await one.receive(url)
        shown = {**late, "VisibilityTimeout": 0}
        if profile is AWS:
            await one.ask("change_message_visibility", QueueUrl=url, **shown)
        else:
            with pytest.raises(ClientError) as refused:
                await one.ask("change_message_visibility", QueueUrl=url, **shown)
            assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
        assert await one.receive(url) == [], "the second receiver holds it"
        await one.ask("delete_message", QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])
        with pytest.raises(ClientError) as refused:
            await one.ask("change_message_visibility", QueueUrl=url, **late)
        assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"


@run
async def test_a_late_change_of_visibility_of_a_fifo_message_is_an_error() -> None:
    async with world() as one:
        made = {"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}}
        url = (await one.ask("create_queue", **made))["QueueUrl"]
        how = {"MessageGroupId": "g", "MessageDeduplicationId": "1"}
        await one.ask("send_message", QueueUrl=url, MessageBody="m", **how)
        (held,) = await one.receive(url)
        await one.pass_seconds(30)
        late = {"ReceiptHandle": held["ReceiptHandle"], "VisibilityTimeout": 600}
        with pytest.raises(ClientError):
            await one.ask("change_message_visibility", QueueUrl=url, **late)
