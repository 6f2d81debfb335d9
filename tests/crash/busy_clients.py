"""Clients that keep a server busy and write down what they ask and what they are told.

Every message has a MessageId of its own, so that a send whose answer was lost can be repeated by
the client: told that it is a duplicate, such a send was stored before. Now and then an id is sent
again on purpose, under another body, once the first was acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from itertools import count
from random import Random
from typing import Any

from onibus import Filter, Message, ReceivedMessage
from onibus.client import AsyncClient
from onibus.core.errors import OnibusError, Unknown
from tests.simulator.history import OK, REFUSED, UNKNOWN, Event

QUEUE, SESSIONS = "orders", "conversations"
#: Longer than any run: every repeated id is a duplicate.
WINDOW_MS = 7 * 86_400_000
SETTINGS: dict[str, dict[str, Any]] = {
    QUEUE: {"enable_partitioning": True},
    SESSIONS: {"requires_session": True},
}
COMMON = {
    "requires_duplicate_detection": True,
    "duplicate_detection_window_ms": WINDOW_MS,
    "lock_duration_ms": 2_000,
    "max_delivery_count": 1_000_000,
}
#: What becomes of a message that was received, and how often.
ENDS = {"complete": 60, "abandon": 15, "defer": 15, "dead-letter": 10}


class History:
    """What was asked and told, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._operations = count()
        #: what went well, with the client's name if it has one
        self.done: set[str] = set()
        #: how long each client waits after each of its steps
        self.pause_s = 0.0
        #: how long a client keeps one message in 30 before it settles it
        self.late_s = 0.0
        #: the server's wall clock differs from ours, or its disk is full: its locks do not bind
        self.locks_are_unsure = False
        #: the run failed: clients that wait for a server end
        self.is_over = False
        #: the first operation since the last fault
        self._since = 0

    def lateness_s(self, random: Random) -> float:
        """Return how long a client waits before it settles a message: sometimes past its lock."""
        return self.late_s if self.late_s and random.random() < 1 / 30 else 0.0

    def _write(self, event: Event) -> None:
        event.time = time.time_ns() // 1_000_000
        self.events.append(event)

    def fault(self) -> None:
        self._since = next(self._operations)
        self._write(Event(phase="fault"))

    def invoke(self, kind: str, entity: str, **facts: Any) -> int:
        operation = next(self._operations)
        self._write(Event(phase="invoke", kind=kind, operation=operation, entity=entity, **facts))
        return operation

    def binds(self, operation: int) -> bool:
        """Return whether the locks that an operation got still hold as the server said."""
        return operation >= self._since and not self.locks_are_unsure

    def complete(
        self, operation: int, kind: str, entity: str, outcome: str = OK, **facts: Any
    ) -> None:
        if outcome == OK:
            self.done.add(f"{facts.get('client', '')} {kind}".strip())
        if not self.binds(operation):
            # A server that is dead by now may have given the lock: the next one need not know it.
            facts.pop("until", None)
            facts.pop("until_least", None)
        self._write(
            Event(
                phase="complete",
                kind=kind,
                operation=operation,
                entity=entity,
                outcome=outcome,
                **facts,
            )
        )

    def received(self, operation: int, kind: str, entity: str, got: ReceivedMessage) -> None:
        self.complete(
            operation,
            kind,
            entity,
            number=got.sequence_number,
            body=got.body.decode(),
            session=got.session_id,
            stamp=got.enqueued_time_ms,
            until=got.locked_until_ms,
            token=got.token.hex() if got.token else None,
        )

    async def ask(
        self, kind: str, entity: str, call: Awaitable[Any], **facts: Any
    ) -> tuple[str, Any]:
        """Write an operation down with what became of it; return that and the answer."""
        operation = self.invoke(kind, entity, **facts)
        outcome, answer = await told(call)
        self.complete(operation, kind, entity, outcome, **facts)
        return outcome, answer


async def told(call: Awaitable[Any]) -> tuple[str, Any]:
    """Return what became of a call, and its answer."""
    try:
        return OK, await call
    except Unknown:
        return UNKNOWN, None
    except OnibusError:
        return REFUSED, None


class Clients:
    """Tasks that send, schedule, cancel, receive and settle until they are told to stop."""

    def __init__(self, client: AsyncClient, history: History, seed: int) -> None:
        self._client = client
        self._history = history
        self._random = Random(seed)
        self._bodies = count(seed * 1_000_000_000)
        #: MessageIds that were acknowledged
        self._sent: deque[str] = deque(maxlen=500)
        self._scheduled: list[int] = []
        self._deferred: list[int] = []
        self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Be busy until then, and finish what was begun."""
        work = [self._send] * 4 + [self._receive] * 3 + [self._in_session] * 3
        tasks = [asyncio.ensure_future(self._forever(one)) for one in [*work, self._cancel]]
        tasks.append(asyncio.ensure_future(self._forever(self._receive_deferred)))
        await stop.wait()
        self._stopping = True
        await asyncio.gather(*tasks)

    async def _forever(self, work: Any) -> None:
        while not self._stopping:
            await work()
            await asyncio.sleep(self._random.random() * 0.01 + self._history.pause_s)

    # Sending

    def _message(self) -> tuple[str, Message]:
        random, body = self._random, f"{next(self._bodies)}"
        entity = random.choice((QUEUE, SESSIONS))
        message = Message(body=body.encode(), message_id=f"{entity}-{body}")
        if entity == SESSIONS:
            message.session_id = f"s{random.randrange(6)}"
        if random.random() < 0.15:
            due = time.time_ns() // 1_000_000 + random.randrange(1, 1_500)
            message.scheduled_enqueue_time_ms = due
        return entity, message

    async def _send(self) -> None:
        if self._sent and self._random.random() < 0.1:
            await self._send_again()
            return
        entity, message = self._message()
        due = message.scheduled_enqueue_time_ms
        kind = "send" if due is None else "schedule"
        facts = {"body": message.body.decode(), "session": message.session_id, "due": due}
        operation = self._history.invoke(kind, entity, identity=message.message_id, **facts)
        outcome, sent = await told(self._client.send(entity, message))
        number = None if sent is None else sent.sequence_number
        self._history.complete(operation, kind, entity, outcome, number=number)
        if outcome == OK and entity == QUEUE:
            assert message.message_id is not None
            self._sent.append(message.message_id)
            if due is not None and number is not None:
                self._scheduled.append(number)

    async def _send_again(self) -> None:
        """Send a known id under another body: it must be dropped."""
        identity, body = self._random.choice(self._sent), f"again {next(self._bodies)}"
        operation = self._history.invoke("send", QUEUE, body=body, identity=identity)
        again = Message(body=body.encode(), message_id=identity)
        outcome, sent = await told(self._client.send(QUEUE, again))
        facts = {} if sent is None else {"number": sent.sequence_number}
        repeats = None if sent is None else sent.duplicate_of
        self._history.complete(operation, "send", QUEUE, outcome, duplicate_of=repeats, **facts)

    async def _cancel(self) -> None:
        if self._scheduled:
            number = self._scheduled.pop(self._random.randrange(len(self._scheduled)))
            call = self._client.cancel_scheduled(QUEUE, [number])
            await self._history.ask("cancel", QUEUE, call, number=number)

    # Receiving

    async def _settle(self, receiver: Any, entity: str, got: ReceivedMessage, kind: str) -> None:
        await asyncio.sleep(self._history.lateness_s(self._random))
        verb = getattr(receiver, kind.replace("-", "_"))
        token = got.token.hex() if got.token else None
        number = got.sequence_number
        outcome, _ = await self._history.ask(kind, entity, verb(got), number=number, token=token)
        if kind == "defer" and outcome == OK and entity == QUEUE:
            self._deferred.append(number)

    async def _receive(self) -> None:
        async with self._client.receiver(QUEUE, renew_ms=0) as receiver:
            operation = self._history.invoke("receive", QUEUE)
            _, received = await told(receiver.receive(self._random.choice((1, 5)), wait_ms=50))
            for got in received or ():
                self._history.received(operation, "receive", QUEUE, got)
            for got in received or ():
                (kind,) = self._random.choices(list(ENDS), list(ENDS.values()))
                await self._settle(receiver, QUEUE, got, kind)

    async def _receive_deferred(self) -> None:
        if self._deferred:
            number = self._deferred.pop(0)
            async with self._client.receiver(QUEUE, renew_ms=0) as receiver:
                operation = self._history.invoke("receive", QUEUE)
                _, received = await told(receiver.receive_deferred([number]))
                for got in received or ():
                    self._history.received(operation, "receive", QUEUE, got)
                    await self._settle(receiver, QUEUE, got, "complete")

    async def _in_session(self, kind: str = "receive") -> None:
        history = self._history
        operation = history.invoke("accept", SESSIONS)
        try:
            receiver = await self._client.accept_session(SESSIONS, wait_ms=50, renew_ms=0)
        except OnibusError:
            return
        session, until = receiver.session_id, receiver.locked_until_ms
        history.complete(operation, "accept", SESSIONS, session=session, until=until)
        operation = history.invoke("receive", SESSIONS)
        _, received = await told(receiver.receive(8))
        for got in received or ():
            history.received(operation, kind, SESSIONS, got)
        if kind == "drain":
            await self._complete_all(receiver, SESSIONS, received or [])
        for got in received or () if kind == "receive" else ():
            if self._random.random() < 0.2:
                break
            await self._settle(receiver, SESSIONS, got, "complete")
        await history.ask("close", SESSIONS, receiver.close(), session=session)

    # The end

    async def drain(self) -> None:
        """Receive and complete everything, wait for what is scheduled, until nothing is left."""
        for entity in (QUEUE, SESSIONS):
            while await self.left(entity):
                if entity == SESSIONS:
                    await self._in_session("drain")
                else:
                    await self._drain_queue()
            await self._history.ask("drained", entity, asyncio.sleep(0))

    async def left(self, entity: str) -> int:
        info = await self._client.queue(entity)
        aside = info.deferred_count + info.dead_lettered_count
        return int(info.active_count + info.scheduled_count + info.held_count + aside)

    async def _drain_queue(self) -> None:
        aside = Filter(state="deferred")
        found = [one async for one in self._client.peek_all(QUEUE, where=aside)]
        free = [one.sequence_number for one in found if one.state == "deferred"]
        for dead in (False, True):
            async with self._client.receiver(QUEUE, dead_letters=dead, renew_ms=0) as receiver:
                operation = self._history.invoke("receive", QUEUE)
                received = await receiver.receive(100, wait_ms=0 if dead else 50)
                if free and not dead:
                    received += await receiver.receive_deferred(free)
                for got in received:
                    self._history.received(operation, "drain", QUEUE, got)
                await self._complete_all(receiver, QUEUE, received)

    async def _complete_all(
        self, receiver: Any, entity: str, received: list[ReceivedMessage]
    ) -> None:
        """Complete messages at once: on a slow machine their locks expire one after another."""
        settling = [self._settle(receiver, entity, got, "complete") for got in received]
        await asyncio.gather(*settling)
