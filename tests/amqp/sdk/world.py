"""What a scenario has: azure-servicebus of Python, plain or asyncio, and a client of ours.

Scenarios are written once, for the asyncio client; the plain one does the same behind `Awaited`,
each call in a thread. Both are the packages as they are published, and both talk to `onibus serve`
as a process of its own. What these clients have no call for (moving the clock, quotas of a few
bytes) is done by a client of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any, Self

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncServiceBusAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from onibus.client import AsyncClient, Retry
from tests.amqp.sdk.stage import Kind
from tests.atom.helpers import administration
from tests.client.server_helpers import development_string, walk
from tests.server.processes import Served

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
#: What receivers wait for that something will come to: longer than any machine is busy.
WAIT_S = 60

_numbers = count(1)


class Awaited:
    """A plain client of the SDK, or something it gave, used as if it were the asyncio one."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._plain, name)
        if name == "session":
            return Awaited(found)
        if not callable(found):
            return found
        if name.endswith(("_sender", "_receiver")):
            return lambda *args, **given: Awaited(found(*args, **given))
        if name.startswith("list_"):
            return lambda *args, **given: walk(iter(found(*args, **given)))
        return lambda *args, **given: asyncio.to_thread(found, *args, **given)

    def __aiter__(self) -> AsyncIterator[Any]:
        return walk(iter(self._plain))

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._plain.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._plain.__exit__, *error)


def official(kind: Kind, connection: str, **how: Any) -> Any:
    """Return an official client, which tells errors at once unless it is told to try again."""
    how = {"retry_total": 0, **how}
    if kind == "sync":
        return Awaited(ServiceBusClient.from_connection_string(connection, **how))
    return AsyncServiceBusClient.from_connection_string(connection, **how)


class World:
    """What a scenario has: the official clients of one kind, and a client of ours.

    They find the server at its port for AMQP, or at that of HTTP, which takes AMQP too and is the
    same after a restart.
    """

    def __init__(self, kind: Kind, server: Served, *, one_port: bool = False, **how: Any) -> None:
        self.kind = kind
        self.server = server
        port = server.port if one_port else int(server.ready["amqp"].rpartition(":")[2])
        self.client = official(kind, development_string(port, server.root_key), **how)
        self.admin: Any
        if kind == "sync":
            self.admin = Awaited(administration(server, kind=ServiceBusAdministrationClient))
        else:
            self.admin = administration(server, kind=AsyncServiceBusAdministrationClient)
        owner = development_string(server.port, server.root_key)
        self.owner = AsyncClient.connect(owner, retry=Retry(attempts=1))
        self._links: list[Any] = []

    def connection(self, name: str, key: str) -> str:
        """Return a connection string with another key than the emulator's."""
        port = self.server.ready["amqp"].rpartition(":")[2]
        where = f"Endpoint=sb://localhost:{port};SharedAccessKeyName={name};SharedAccessKey={key}"
        return f"{where};UseDevelopmentEmulator=true"

    async def close(self) -> None:
        """Close all links at once; each waits for a thread, or a task, that sleeps for a second."""
        closing = (link.close() for link in self._links)
        # A link whose server was killed may fail to say goodbye.
        await asyncio.gather(*closing, return_exceptions=True)
        for one in (self.client, self.admin, self.owner):
            await one.close()

    # Entities

    @staticmethod
    def name(word: str = "q") -> str:
        """Return a name that no other scenario has."""
        return f"{word}-{next(_numbers)}"

    async def queue(self, **settings: Any) -> str:
        """Make a queue as the administration client does; return its name."""
        name = self.name()
        await self.admin.create_queue(name, **settings)
        return name

    async def topic(self, *subscriptions: str, **settings: Any) -> str:
        """Make a topic with subscriptions; return its name."""
        name = self.name("t")
        await self.admin.create_topic(name, **settings)
        for one in subscriptions:
            await self.admin.create_subscription(name, one)
        return name

    async def counts(self, queue: str) -> tuple[int, int, int]:
        """Return how many messages are active, scheduled, and dead letters."""
        told = await self.admin.get_queue_runtime_properties(queue)
        return (
            told.active_message_count,
            told.scheduled_message_count,
            told.dead_letter_message_count,
        )

    # Links

    async def open(self, *links: Any) -> list[Any]:
        """Open links at once; they are closed when the scenario is over."""
        self._links += links
        await asyncio.gather(*(link.__aenter__() for link in links))
        return list(links)

    async def refused(self, error: type[Exception], link: Any, match: str | None = None) -> None:
        """Open a link, which must be refused with this error."""
        with pytest.raises(error, match=match):
            await self.open(link)

    async def sender(self, entity: str) -> Any:
        (link,) = await self.open(self.to(entity))
        return link

    async def receiver(self, entity: str, **how: Any) -> Any:
        (link,) = await self.open(self.of(entity, **how))
        return link

    async def both(self, queue: str, **how: Any) -> list[Any]:
        """Open a sender and a receiver of one queue."""
        return await self.open(self.to(queue), self.of(queue, **how))

    def to(self, entity: str) -> Any:
        """Return a sender that is not open yet, to a queue or a topic."""
        if entity.startswith("t-"):
            return self.client.get_topic_sender(entity)
        return self.client.get_queue_sender(entity)

    def of(self, entity: str, *, delete: bool = False, **how: Any) -> Any:
        """Return a receiver that is not open yet, of a queue or of topic/subscription."""
        if delete:
            how["receive_mode"] = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        topic, _, subscription = entity.partition("/")
        if subscription:
            return self.client.get_subscription_receiver(topic, subscription, **how)
        return self.client.get_queue_receiver(entity, **how)

    # Time

    async def advance(self, ms: int) -> None:
        """Move the server's clock (X10)."""
        await self.owner.advance(ms)

    async def now(self) -> datetime:
        """Return what time it is on the server."""
        return moment(await self.owner.advance(0))


# Words for what scenarios do often


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


def msg(body: str | bytes = "", message_id: str | None = None, **fields: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, message_id=message_id, **fields)


async def get(receiver: Any, wanted: int) -> list[Any]:
    """Receive so many messages: these clients return what came within a fifth of a second."""
    found: list[Any] = []
    while len(found) < wanted:
        more = await receiver.receive_messages(wanted - len(found), max_wait_time=WAIT_S)
        assert more, f"{len(found)} of {wanted} came"
        found += more
    return found


async def get_one(receiver: Any) -> Any:
    (message,) = await get(receiver, 1)
    return message


async def peek_all(receiver: Any, page: int = 100) -> list[Any]:
    """Peek call after call until nothing is returned."""
    found: list[Any] = []
    start = 1
    while more := await receiver.peek_messages(page, sequence_number=start):
        found += more
        start = more[-1].sequence_number + 1
    return found


def bodies(messages: list[Any]) -> list[str]:
    return [str(message) for message in messages]


def numbers(messages: list[Any]) -> list[int]:
    return [message.sequence_number for message in messages]


def partitions(messages: list[Any]) -> list[int]:
    """Return the partition of each, which its number tells."""
    return [message.sequence_number >> 48 for message in messages]


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """Ask again and again until it is so; return what was told."""
    while not (told := await condition()):
        await asyncio.sleep(0.02)
    return told
