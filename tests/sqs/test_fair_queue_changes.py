"""Fair queues through boto3 while messages are deleted, hidden, dead-lettered and purged (B10)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onibus.core.noise import CROWD
from tests.bus_helpers import Disks, ManualClock, run
from tests.sqs.still_clock import World, world
from tests.sqs.test_fair_queues import get, new, put

pytestmark = pytest.mark.promise("B10")


async def hold(one: World, url: str, count: int) -> list[Any]:
    """Receive this many messages and keep them."""
    found: list[Any] = []
    while len(found) < count:
        found += await one.receive(url, MaxNumberOfMessages=min(count - len(found), 10))
    return found


async def each(one: World, action: str, url: str, held: list[Any], **given: Any) -> None:
    """Delete, or change, messages in batches of ten."""
    for start in range(0, len(held), 10):
        entries = [
            {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"], **given}
            for at, message in enumerate(held[start : start + 10])
        ]
        told = await one.ask(action, QueueUrl=url, Entries=entries)
        assert len(told["Successful"]) == len(entries)


async def noisy(one: World, url: str, backlog: int = 2 * CROWD) -> list[Any]:
    """Make a group noisy, and send one message of a quiet group; return what is in flight."""
    await put(one, url, "noisy", backlog)
    held = await hold(one, url, CROWD)
    await put(one, url, "quiet")
    return held


def shown(one: World, name: str = "q") -> list[str]:
    return [group.group for group in one.bus.queue(name).noisy_groups]


@run
async def test_a_group_whose_messages_are_deleted_is_quiet_again() -> None:
    async with world() as one:
        url = await new(one)
        held = await noisy(one, url)
        assert shown(one) == ["noisy"]
        await each(one, "delete_message_batch", url, held[:1])
        assert shown(one) == []
        assert await get(one, url, 1) == ["noisy"], "in order again"
        assert await get(one, url, 2) == ["quiet", "noisy"], "and it has its crowd again"


@run
async def test_a_group_whose_messages_are_visible_again_is_quiet() -> None:
    async with world() as one:
        url = await new(one)
        held = await noisy(one, url)
        assert await get(one, url, 1) == ["quiet"], "the backlog of the group is set aside"
        await put(one, url, "late")
        await each(one, "change_message_visibility_batch", url, held, VisibilityTimeout=0)
        assert shown(one) == []
        # The first receive makes it noisy once more, when it has the crowd.
        assert await get(one, url, CROWD) == ["noisy"] * CROWD
        assert await get(one, url, 2) == ["late", "noisy"]


@run
async def test_a_longer_timeout_keeps_it_noisy_and_one_that_ends_counts_its_time() -> None:
    async with world() as one:
        url = await new(one, VisibilityTimeout="30")
        held = await noisy(one, url)
        await each(one, "change_message_visibility_batch", url, held, VisibilityTimeout=40)
        await one.pass_seconds(35)
        assert await get(one, url, 1) == ["quiet"]
        await one.pass_seconds(10)
        # Nothing of it is in flight, but its time of the last minute is.
        await put(one, url, "quiet")
        assert await get(one, url, 2) == ["quiet", "noisy"]
        await put(one, url, "quiet")
        await one.pass_seconds(120)
        assert await get(one, url, 1) == ["noisy"], "a minute later it is not"


@run
async def test_dead_lettering_loses_nothing_and_the_other_queue_is_fair_too() -> None:
    async with world() as one:
        dead = await new(one, "dead")
        arn = (await one.ask("get_queue_attributes", QueueUrl=dead, AttributeNames=["QueueArn"]))[
            "Attributes"
        ]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
        url = await new(one, "q", RedrivePolicy=policy, VisibilityTimeout="30")
        await noisy(one, url)
        assert await get(one, url, 1) == ["quiet"]
        await one.pass_seconds(31)
        assert await get(one, url, 100) == ["noisy"] * CROWD
        await put(one, dead, "other")
        assert await get(one, dead, CROWD) == ["noisy"] * CROWD
        assert sorted(await get(one, dead, 100)) == ["other", "quiet"]


@run
async def test_a_purge_takes_what_is_set_aside_too() -> None:
    async with world() as one:
        url = await new(one)
        await noisy(one, url, backlog=100)
        assert await get(one, url, 1) == ["quiet"]
        await one.ask("purge_queue", QueueUrl=url)
        assert await get(one, url, 1) == []
        counted = await one.ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        assert [counted["Attributes"][name] for name in names] == ["0", "0"]
        assert shown(one) == []
        await put(one, url, "noisy")
        await put(one, url, "quiet")
        assert await get(one, url, 3) == ["noisy", "quiet"]


@run
async def test_of_many_noisy_groups_the_one_with_the_fewest_in_flight_comes_first() -> None:
    async with world() as one:
        url = await new(one)
        counts = {"a": CROWD + 2, "b": CROWD + 1, "c": CROWD}
        for group, count in counts.items():
            await put(one, url, group, count)
            await hold(one, url, count)
        for group in counts:
            await put(one, url, group, 3)
        await put(one, url, "quiet")
        assert await get(one, url, 7) == ["quiet", "c", "b", "c", "a", "b", "c"]


@run
async def test_a_tenth_of_all_in_flight_is_not_more_than_a_tenth() -> None:
    async with world() as one:
        url = await new(one)
        for group in range(10):
            await put(one, url, str(group), CROWD)
        await hold(one, url, 10 * CROWD)
        await put(one, url, "0")
        await put(one, url, "quiet")
        assert shown(one) == []
        assert await get(one, url, 2) == ["0", "quiet"]


@run
async def test_a_restart_while_a_backlog_is_set_aside_loses_nothing() -> None:
    disks, clock = Disks(), ManualClock()
    async with world(disks, clock) as one:
        url = await new(one)
        held = await noisy(one, url, backlog=100)
        assert await get(one, url, 1) == ["quiet"]
        await put(one, url, "quiet")
    async with world(disks, clock) as one:
        url = (await one.ask("get_queue_url", QueueName="q"))["QueueUrl"]
        assert await get(one, url, 1) == ["quiet"]
        # Handles of before the restart settle, and end the noise.
        await each(one, "delete_message_batch", url, held)
        assert shown(one) == []
        assert await get(one, url, 100) == ["noisy"] * (100 - CROWD)
