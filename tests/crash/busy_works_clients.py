"""Clients that keep a server busy with what touches several partitions.

The server's part of `tests.simulator.busy_works`: transactions over two stores, over HTTP and AMQP;
a chain of queues that forward, to a worker with transactions; a topic with two subscriptions;
columns that are staged as blocks, and published.
Collectors receive and complete the messages at the end, or claim and commit them. Nothing here has
duplicate detection, and no client repeats a request: a message with two sequence numbers was
stored twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from threading import Event as Flag
from types import SimpleNamespace
from typing import Any

from onibus import Message
from onibus.client import AsyncClient
from onibus.core.errors import LockLost, OnibusError
from onibus.core.rules.rule import Rule, SqlAction, SqlFilter
from onibus.security.keys import DEVELOPMENT_KEY
from tests.amqp.sdk.raw_transaction import RawTransactions
from tests.crash.busy_clients import History, told
from tests.simulator.busy_works import (
    ALL,
    BATCH_ROWS,
    BATCHES,
    EVEN,
    FIRST,
    LAST,
    LEFT,
    MADE,
    QUEUES,
    RIGHT,
    SECOND,
    TOPIC,
    batch_rows,
)
from tests.simulator.history import OK, UNKNOWN

#: Nothing is left in these at the end, as it is received or claimed.
ENDS = (LEFT, RIGHT, MADE, BATCHES, ALL, EVEN)
SHORT: dict[str, Any] = {"lock_duration_ms": 2_000, "max_delivery_count": 1_000_000}
READER = "collector"


async def create(client: AsyncClient) -> None:
    """Create the entities."""
    for name, settings in QUEUES.items():
        await client.create_queue(name, **{**settings, **SHORT})
    await client.create_topic(TOPIC)
    even = Rule("even", SqlFilter("n % 2 = 0"), SqlAction("SET parity = 'even'"))
    await client.create_subscription(TOPIC, "all", **SHORT)
    await client.create_subscription(TOPIC, "even", rules=[even], **SHORT)


class WorksClients:
    """Tasks that send in transactions, into chains and to a topic, and collect what comes out."""

    def __init__(self, client: AsyncClient, history: History, seed: int) -> None:
        self._client = client
        self._history = history
        self._bodies = (f"{seed}-{number}" for number in count())
        self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Be busy until then, and finish what was begun."""
        acts: list[Callable[[], Awaitable[Any]]] = [
            *(self._transfer, self._transfer, self._begin_chain, self._begin_chain),
            *(self._tell_news, self._work, self._claim, self._publish),
            *(self._collecting(name) for name in (LEFT, MADE, BATCHES, ALL, EVEN)),
        ]
        tasks = [asyncio.ensure_future(self._forever(act)) for act in acts]
        await stop.wait()
        self._stopping = True
        await asyncio.gather(*tasks)

    async def _forever(self, act: Callable[[], Awaitable[Any]]) -> None:
        while not self._stopping:
            try:
                await act()
            except OnibusError:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.02 + self._history.pause_s)

    def _collecting(self, name: str) -> Callable[[], Awaitable[int]]:
        return lambda: self._collect(name)

    async def _ask(self, kind: str, body: str, call: Awaitable[Any]) -> None:
        await self._history.ask(kind, "", call, body=body)

    async def _transfer(self) -> None:
        body = next(self._bodies)
        tx = self._client.transaction()
        await tx.send(LEFT, Message(body=body.encode()))
        await tx.send(RIGHT, Message(body=body.encode()))
        await self._ask("transfer", body, tx.commit())

    async def _begin_chain(self) -> None:
        body = next(self._bodies)
        await self._ask("chain", body, self._client.send(FIRST, Message(body=body.encode())))

    async def _tell_news(self) -> None:
        body = next(self._bodies)
        message = Message(body=body.encode(), properties={"n": int(body.partition("-")[2])})
        await self._ask("news", body, self._client.send(TOPIC, message))

    async def _publish(self) -> None:
        """Stage a batch of columns, and publish it."""
        bodies = [next(self._bodies) for _ in range(BATCH_ROWS)]
        names: dict[str, Any] = {"producer": bodies[0], "batch": 0}
        await self._client.stage_arrow(BATCHES, batch_rows(bodies), task=0, attempt=0, **names)
        operations = [
            self._history.invoke("batch", "", client="http", body=body) for body in bodies
        ]
        outcome, _ = await told(self._client.publish(BATCHES, attempts=[(0, 0)], **names))
        for operation, body in zip(operations, bodies, strict=True):
            self._history.complete(operation, "batch", "", outcome, body=body)

    async def _work(self) -> None:
        async with self._client.receiver(LAST, renew_ms=0) as receiver:
            for got in await receiver.receive(5, wait_ms=20):
                tx = self._client.transaction()
                await tx.complete(receiver, got)
                await tx.send(MADE, Message(body=got.body))
                await tx.commit()

    # Collecting

    def _there(self, entity: str, messages: list[Any]) -> list[int]:
        for one in messages:
            body, number = one.body.decode(), one.sequence_number
            self._history.complete(0, "there", entity, number=number, body=body)
        return [one.sequence_number for one in messages]

    def _taken(self, entity: str, numbers: list[int]) -> None:
        for number in numbers:
            self._history.complete(0, "taken", entity, number=number)

    async def _collect(self, entity: str) -> int:
        async with self._client.receiver(entity, renew_ms=0) as receiver:
            received = await receiver.receive(50)
            numbers = self._there(entity, received)
            if received:
                outcome, _ = await told(receiver.complete(*received))
                if outcome == OK:
                    self._taken(entity, numbers)
        return len(received)

    async def _claim(self) -> int:
        """Claim, read and commit; finish earlier claims first."""
        client = self._client
        if not await client.claims(RIGHT):
            await client.claim(RIGHT, READER, 50)
        claims = await client.claims(RIGHT)
        for claim in claims:
            found = await client.read_claim(RIGHT, READER, claim.number)
            numbers = self._there(RIGHT, found)
            await client.commit_claim(RIGHT, READER, claim.number)
            self._taken(RIGHT, numbers)
        return len(claims)

    # The end

    async def drain(self) -> None:
        """Let everything come to rest, and take it out."""
        while any([await self._left(name) for name in (FIRST, SECOND, LAST)]):
            # On a busy machine a lock expires before its message is settled: it is redelivered.
            with suppress(LockLost):
                await self._work()
            await asyncio.sleep(0.01)
        for name in ENDS:
            while await self._left(name):
                await (self._claim() if name == RIGHT else self._collect(name))
                await asyncio.sleep(0.01)

    async def _left(self, name: str) -> int:
        asked = self._client.subscription if name in (ALL, EVEN) else self._client.queue
        info: Any = await asked(name)
        return int(info.active_count + info.held_count + info.dead_lettered_count)


def transfer_by_amqp(port: int, history: History, seed: int, stop: Flag) -> None:
    """Put bodies into both queues by AMQP transactions until stopped; connect again if cut off."""
    server: Any = SimpleNamespace(
        ready={"amqp": f"amqp://127.0.0.1:{port}"}, root_key=DEVELOPMENT_KEY
    )
    bodies = count()
    while not stop.is_set():
        try:
            with RawTransactions(server, LEFT, RIGHT) as client:
                while not stop.is_set():
                    time.sleep(history.pause_s)
                    _transfer(client, f"amqp{seed}-{next(bodies)}", history)
        except (OSError, EOFError, AssertionError):
            time.sleep(0.02)


def _transfer(client: RawTransactions, body: str, history: History) -> None:
    operation = history.invoke("transfer", "", client="amqp", body=body)
    outcome = UNKNOWN
    try:
        name = client.declare()
        taken = [client.send(entity, name, body.encode()) for entity in (LEFT, RIGHT)]
        if all(taken) and not client.discharge(name):
            outcome = OK
    finally:
        history.complete(operation, "transfer", "", outcome, body=body)
