"""ChangeMessageVisibility: stored, seen by receivers that wait, and accepted late."""

from __future__ import annotations

import asyncio

import pytest

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
        # The receive is on the disk: no commit of its own wakes anybody later.
        await one.pass_seconds(0)
        waiting = asyncio.create_task(one.receive(url, WaitTimeSeconds=20))
        await one.until_waited_for(one.bus.broker.find("q"))
        how = {"ReceiptHandle": held["ReceiptHandle"], "VisibilityTimeout": 0}
        await one.ask("change_message_visibility", QueueUrl=url, **how)
        # The clock stands still: the receiver never stops waiting by itself.
        assert [m["Body"] for m in await asyncio.wait_for(waiting, 25)] == ["m"]
