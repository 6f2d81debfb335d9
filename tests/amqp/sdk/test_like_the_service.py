"""Details that clients see of the real service: what they echo, keep and read."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusSubQueue

from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.world import World, get_one, msg

DEAD_LETTER = ServiceBusSubQueue.DEAD_LETTER


@pytest.mark.promise("B1")
@scenario
async def test_a_dead_lettered_message_is_resent_with_its_partition_key(world: World) -> None:
    queue = await world.queue()
    sender, receiver = await world.both(queue)
    dead = await world.receiver(queue, sub_queue=DEAD_LETTER)
    await sender.send_messages(msg("1", "id", partition_key="kéy"))
    await receiver.dead_letter_message(await get_one(receiver))
    found = await get_one(dead)
    await sender.send_messages(found)
    await dead.complete_message(found)
    again = await get_one(receiver)
    assert (again.message_id, again.partition_key) == ("id", "kéy")
