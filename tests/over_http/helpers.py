"""What tests against a real server share: how it is reached, and words for what they do often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from onibus import Message, ReceivedMessage, Sent
from tests.server.processes import PATIENCE_S

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000

#: Opens a client of a server that has no entities; of the asyncio kind, or the blocking one.
Open = Callable[[], AbstractAsyncContextManager[Any]]


def msg(body: str = "", **fields: Any) -> Message:
    """Return a message with that text."""
    return Message(body=body.encode(), **fields)


async def send(client: Any, entity: str, *bodies: str, **fields: Any) -> list[Sent]:
    """Send messages with these texts, one by one."""
    return [await client.send(entity, msg(body, **fields)) for body in bodies]


async def get(client: Any, entity: str, limit: int = 100, **how: Any) -> list[ReceivedMessage]:
    """Receive what is there, under locks that nobody renews unless `delete` is set."""
    found: list[ReceivedMessage] = await client.receiver(entity, renew_ms=0, **how).receive(limit)
    return found


async def get_one(client: Any, entity: str, **how: Any) -> ReceivedMessage:
    """Receive the next message; there must be one."""
    (message,) = await get(client, entity, 1, **how)
    return message


async def now(client: Any) -> int:
    """Return what time it is on the server."""
    moment: int = await client.advance(0)
    return moment


def bodies(messages: list[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [message.sequence_number for message in messages]


def partition_index(number: int) -> int:
    return number >> 48


async def everything(client: Any, entity: str, **how: Any) -> list[ReceivedMessage]:
    """Peek call after call until nothing is returned."""
    return [message async for message in client.peek_all(entity, **how)]


async def picture(client: Any, queue: str) -> Any:
    """Return all that can be seen of a queue, for "this changed nothing"."""
    info, seen = await client.queue(queue), await everything(client, queue)
    return info, seen, await everything(client, queue, dead_letters=True)


async def until(condition: Callable[[], Awaitable[Any]], patience_s: float = PATIENCE_S) -> Any:
    """Ask again and again until it is so; return what was told."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while not (told := await condition()):
        assert asyncio.get_running_loop().time() < deadline, "it did not come to pass"
        await asyncio.sleep(0.02)
    return told
