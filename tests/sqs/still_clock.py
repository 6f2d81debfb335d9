"""boto3 against a server in this process whose clock moves only when a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onibus.bus import Bus
from onibus.protocols.sqs.profile import AWS, Profile
from onibus.server.server import Server
from tests.bus_helpers import PATIENCE_S, Disks, ManualClock, pass_ms, until_waited_for
from tests.sqs.clients import client_of


class World:
    """One server, its clock, and a client."""

    def __init__(self, bus: Bus, clock: ManualClock, client: Any) -> None:
        self.bus = bus
        self.clock = clock
        self.client = client

    async def ask(self, action: str, **given: Any) -> Any:
        """Call the client in a thread: the server needs this one."""
        return await asyncio.to_thread(getattr(self.client, action), **given)

    async def receive(self, url: str, **how: Any) -> list[Any]:
        """Receive what is visible."""
        given = {"MaxNumberOfMessages": 10, **how}
        received = await self.ask("receive_message", QueueUrl=url, **given)
        messages: list[Any] = received.get("Messages", [])
        return messages

    async def pass_seconds(self, seconds: int) -> None:
        """Time passes."""
        await pass_ms(self.bus, self.clock, seconds * 1_000)

    async def until_waited_for(self, name: str) -> None:
        """Return once a receiver waits for messages of a queue."""
        await until_waited_for(self.bus, name)


@asynccontextmanager
async def world(
    disks: Disks | None = None, clock: ManualClock | None = None, profile: Profile = AWS
) -> AsyncIterator[World]:
    """A server that accepts any key; on `disks` that outlive it where given."""
    clock = clock or ManualClock()
    bus = await (disks or Disks()).bus(clock)
    async with Server(bus, None, http_port=0, sqs_port=0, sqs_profile=profile) as server:
        yield World(
            bus, clock, client_of(f"http://127.0.0.1:{server.sqs_port}", read_timeout=PATIENCE_S)
        )
