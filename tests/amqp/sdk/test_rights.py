"""What a key allows, the official clients may do, and nothing else."""

from __future__ import annotations

import asyncio

from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)

from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.world import World, msg, official


@scenario
async def test_rights_are_asked_for_by_every_link(world: World) -> None:
    queue, other = await world.queue(), await world.queue()
    key = await world.owner.create_key(world.name("sends"), ["Send"], entity=queue)
    allowed = official(world.kind, world.connection(key.name, key.primary))
    pretends = official(world.kind, world.connection(key.name, "another key of some length"))
    sender = allowed.get_queue_sender(queue)
    await asyncio.gather(
        world.open(sender),
        # A token that this key makes for another queue is none at all.
        world.refused(ServiceBusAuthenticationError, allowed.get_queue_sender(other)),
        world.refused(ServiceBusAuthorizationError, allowed.get_queue_receiver(queue)),
        world.refused(ServiceBusAuthenticationError, pretends.get_queue_sender(queue)),
    )
    await sender.send_messages(msg("x"))
    assert await world.counts(queue) == (1, 0, 0)
