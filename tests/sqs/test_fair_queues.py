"""Fair queues through boto3: quiet groups of a standard queue are delivered first (B10)."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from onibus.core.noise import CROWD
from onibus.operation.collector import Collector
from onibus.operation.traffic import Traffic
from onibus.protocols.sqs.profile import AWS, YANDEX, Profile
from tests.bus_helpers import Disks, ManualClock, run
from tests.sqs.still_clock import World, world

pytestmark = pytest.mark.promise("B10")
FAIR = "OnibusFairDelivery"


async def new(one: World, name: str = "q", **attributes: str) -> str:
    made = await one.ask("create_queue", QueueName=name, Attributes=attributes)
    url: str = made["QueueUrl"]
    return url


async def put(one: World, url: str, group: str | None, count: int = 1) -> None:
    """Send messages whose bodies name their group, in batches."""
    entry: dict[str, Any] = {"MessageBody": group or "-"}
    if group is not None:
        entry["MessageGroupId"] = group
    while count > 0:
        entries = [{"Id": str(at), **entry} for at in range(min(count, 10))]
        sent = await one.ask("send_message_batch", QueueUrl=url, Entries=entries)
        assert len(sent["Successful"]) == len(entries)
        count -= 10


async def get(one: World, url: str, count: int = 10) -> list[str]:
    """Receive and keep; return the bodies."""
    found: list[str] = []
    while len(found) < count:
        messages = await one.receive(url, MaxNumberOfMessages=min(count - len(found), 10))
        if not messages:
            break
        found += [message["Body"] for message in messages]
    return found


@run
async def test_a_noisy_tenant_does_not_delay_others() -> None:
    async with world() as one:
        url = await new(one)
        await put(one, url, "noisy", 100)
        assert await get(one, url, CROWD) == ["noisy"] * CROWD
        for group in ("a", None, "b"):
            await put(one, url, group)
        assert await get(one, url, 5) == ["a", "-", "b", "noisy", "noisy"]
        assert len(await get(one, url, 100)) == 100 - CROWD - 2, "nothing is lost"


@run
async def test_slow_messages_make_a_tenant_noisy() -> None:
    async with world() as one:
        url = await new(one)
        await put(one, url, "slow", 3)
        assert await get(one, url, 1) == ["slow"]
        await put(one, url, "a")
        await one.pass_seconds(2)
        assert await get(one, url, 3) == ["a", "slow", "slow"]


@run
async def test_the_group_is_returned_with_the_message() -> None:
    async with world() as one:
        url = await new(one)
        await put(one, url, "tenant")
        (message,) = await one.receive(url, MessageSystemAttributeNames=["MessageGroupId"])
        assert message["Attributes"] == {"MessageGroupId": "tenant"}


@run
async def test_silence_of_five_minutes_ends_it() -> None:
    async with world() as one:
        url = await new(one, VisibilityTimeout="3600")
        await put(one, url, "noisy", 60)
        await get(one, url, CROWD)
        await one.pass_seconds(299)
        await put(one, url, "a")
        assert await get(one, url, 1) == ["a"]
        await put(one, url, "a")
        await one.pass_seconds(1)
        assert await get(one, url, 1) == ["noisy"]


@run
async def test_a_restart_keeps_what_is_in_flight() -> None:
    disks, clock = Disks(), ManualClock()
    async with world(disks, clock) as one:
        url = await new(one)
        await put(one, url, "noisy", 60)
        await get(one, url, CROWD)
        await put(one, url, "a")
    async with world(disks, clock) as one:
        url = (await one.ask("get_queue_url", QueueName="q"))["QueueUrl"]
        assert await get(one, url, 2) == ["a", "noisy"]


@pytest.mark.parametrize("profile", [AWS, YANDEX], ids=["aws", "yandex"])
@run
async def test_it_is_the_default_of_aws_and_an_attribute_changes_it(profile: Profile) -> None:
    async with world(profile=profile) as one:
        url = await new(one)
        asked = {"QueueUrl": url, "AttributeNames": ["All"]}
        assert FAIR not in (await one.ask("get_queue_attributes", **asked))["Attributes"]
        other = "false" if profile is AWS else "true"
        changed = await one.ask("set_queue_attributes", QueueUrl=url, Attributes={FAIR: other})
        assert changed["ResponseMetadata"]["HTTPStatusCode"] == 200
        assert (await one.ask("get_queue_attributes", **asked))["Attributes"][FAIR] == other
        await put(one, url, "noisy", 60)
        await get(one, url, CROWD)
        await put(one, url, "a")
        assert await get(one, url, 1) == (["noisy"] if profile is AWS else ["a"])


@run
async def test_fifo_queues_do_not_have_the_attribute() -> None:
    async with world() as one:
        with pytest.raises(ClientError, match=f"Unknown Attribute {FAIR}"):
            await new(one, "q.fifo", FifoQueue="true", **{FAIR: "true"})


@run
async def test_noisy_groups_are_shown_to_operators() -> None:
    async with world() as one:
        url = await new(one)
        await put(one, url, "noisy", 60)
        await get(one, url, CROWD)
        await put(one, url, "a")
        assert await get(one, url, 1) == ["a"]
        (shown,) = one.bus.queue("q").noisy_groups
        assert (shown.group, shown.in_flight_count, shown.passed_count) == ("noisy", CROWD, 30)
        page = b"".join(await Collector(one.bus, Traffic()).page(per_object=False)).decode()
        assert "\nonibus_noisy_groups 1" in page
