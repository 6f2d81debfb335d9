"""FIFO groups through boto3: a message in flight blocks later ones (F10)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bus_helpers import run
from tests.sqs.still_clock import World, world


async def fill(one: World, groups: str, **attributes: str) -> str:
    """Make a FIFO queue with one message for each letter: its group, and which of it."""
    given = {"FifoQueue": "true", "VisibilityTimeout": "30", **attributes}
    url: str = (await one.ask("create_queue", QueueName="q.fifo", Attributes=given))["QueueUrl"]
    for n, group in enumerate(groups):
        await add(one, url, group, groups[: n + 1].count(group))
    return url


async def add(one: World, url: str, group: str, n: int) -> None:
    how = {"MessageGroupId": group, "MessageDeduplicationId": f"{group}{n}"}
    await one.ask("send_message", QueueUrl=url, MessageBody=f"{group}{n}", **how)


async def got(one: World, url: str, count: int = 10) -> list[str]:
    return [m["Body"] for m in await one.receive(url, MaxNumberOfMessages=count)]


async def show(one: World, url: str, *messages: Any) -> None:
    for message in messages:
        how = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
        await one.ask("change_message_visibility", QueueUrl=url, **how)


async def delete(one: World, url: str, message: Any) -> None:
    await one.ask("delete_message", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


@run
@pytest.mark.promise("F10")
async def test_a_message_that_is_visible_again_comes_before_later_ones_in_flight() -> None:
    async with world() as one:
        url = await fill(one, "aaaa")
        a1, a2, a3 = await one.receive(url, MaxNumberOfMessages=3)
        await show(one, url, a2)
        assert await got(one, url) == [], "the one before it is in flight"
        await show(one, url, a1)
        again = await one.receive(url)
        assert [m["Body"] for m in again] == ["a1", "a2"], "in order, and neither a3 nor a4"
        assert await got(one, url) == [], "each is delivered once"
        for message in again:
            await delete(one, url, message)
        assert await got(one, url) == []
        await delete(one, url, a3)
        assert await got(one, url) == ["a4"]


@run
@pytest.mark.promise("F10")
async def test_the_rest_of_a_receive_stays_in_flight_when_its_first_message_times_out() -> None:
    async with world() as one:
        url = await fill(one, "aaa")
        _, a2, _ = await one.receive(url)
        how = {"ReceiptHandle": a2["ReceiptHandle"], "VisibilityTimeout": 90}
        await one.ask("change_message_visibility", QueueUrl=url, **how)
        await one.pass_seconds(31)
        assert await got(one, url) == ["a1"], "a2 is in flight, and a3 comes after it"


@run
@pytest.mark.promise("F10")
async def test_a_group_that_is_visible_again_queues_up_behind_others() -> None:
    async with world() as one:
        url = await fill(one, "abcd")
        a1, b1 = await one.receive(url, MaxNumberOfMessages=2)
        await show(one, url, b1)
        await add(one, url, "e", 1)
        await show(one, url, a1)
        await add(one, url, "f", 1)
        assert await got(one, url) == ["c1", "d1", "b1", "e1", "a1", "f1"]
        await one.pass_seconds(30)
        # All are visible again, and one more receive does not favour the oldest.
        (first,) = await one.receive(url, MaxNumberOfMessages=1)
        await show(one, url, first)
        assert await got(one, url) == ["b1", "c1", "d1", "e1", "f1", "a1"]


@run
@pytest.mark.promise("F10")
async def test_a_queue_can_keep_the_strict_rule() -> None:
    async with world() as one:
        url = await fill(one, "aaa", OnibusStrictGroups="true")
        names = {"AttributeNames": ["OnibusStrictGroups"]}
        told = await one.ask("get_queue_attributes", QueueUrl=url, **names)
        assert told["Attributes"] == {"OnibusStrictGroups": "true"}
        a1, a2 = await one.receive(url, MaxNumberOfMessages=2)
        await show(one, url, a1)
        assert await got(one, url) == []
        await delete(one, url, a2)
        assert await got(one, url) == ["a1", "a3"]
