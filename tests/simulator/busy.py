"""A busy process, to be killed: `be_busy` in a process of its own.

Several tasks send, schedule, cancel, receive and settle on one bus, and write what they ask and
what they are told to the history file, line by line, unbuffered: a kill loses no line that was
written. With `drain` the process receives and completes everything that is left, and ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import count
from random import Random

from onibus.bus import Bus
from onibus.core.errors import EntityExists, NoSession, OnibusError, Unknown
from onibus.core.message import Message, ReceivedMessage
from onibus.receiver import SessionReceiver, Settler
from tests.simulator.history import OK, REFUSED, UNKNOWN, Event, encode

QUEUE, SESSIONS = "orders", "conversations"
STORES = ("a", "b")
WINDOW_MS = 20_000
SETTINGS = {
    QUEUE: {
        "enable_partitioning": True,
        "requires_duplicate_detection": True,
        "duplicate_detection_window_ms": WINDOW_MS,
        "lock_duration_ms": 1_000,
        "max_delivery_count": 1_000_000,
    },
    SESSIONS: {
        "requires_session": True,
        "lock_duration_ms": 1_000,
        "max_delivery_count": 1_000_000,
    },
}


class Recorder:
    """Writes the history."""

    def __init__(self, bus: Bus, path: str, seed: int) -> None:
        self._clock = bus.broker.clock
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        # Operations of all processes have numbers of their own.
        self._operations = count(seed << 32)

    def write(self, event: Event) -> None:
        event.time = self._clock.now()
        os.write(self._file, encode(event))

    def invoke(self, kind: str, entity: str, **facts: object) -> int:
        operation = next(self._operations)
        event = Event(
            phase="invoke",
            kind=kind,
            operation=operation,
            entity=entity,
            **facts,  # type: ignore[arg-type]
        )
        self.write(event)
        return operation

    def complete(
        self, operation: int, kind: str, entity: str, outcome: str = OK, **facts: object
    ) -> None:
        event = Event(
            phase="complete",
            kind=kind,
            operation=operation,
            entity=entity,
            outcome=outcome,
            **facts,  # type: ignore[arg-type]
        )
        self.write(event)

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


class Busy:
    """What the tasks share."""

    def __init__(self, bus: Bus, recorder: Recorder, seed: int) -> None:
        self.bus = bus
        self.recorder = recorder
        self.random = Random(seed)
        self.bodies = count()
        self.seed = seed
        self.scheduled: list[int] = []

    async def send(self, entity: str) -> None:
        """Send or schedule one message; ids repeat now and then."""
        random, recorder = self.random, self.recorder
        body = f"{self.seed}-{next(self.bodies)}"
        message = Message(body=body.encode())
        if entity == SESSIONS:
            message.session_id = f"s{random.randrange(6)}"
            identity = None
        else:
            message.message_id = f"id{random.randrange(3_000)}"
            identity = message.message_id
        due = None
        kind = "send"
        if random.random() < 0.1:
            kind, due = "schedule", recorder._clock.wall() + random.randrange(1, 300)
            message.scheduled_enqueue_time_ms = due
        operation = recorder.invoke(
            kind, entity, body=body, session=message.session_id, identity=identity, due=due
        )
        try:
            sent = await self.bus.send(entity, message)
        except OnibusError as error:
            outcome = UNKNOWN if isinstance(error, Unknown) else REFUSED
            recorder.complete(operation, kind, entity, outcome)
            return
        recorder.complete(
            operation, kind, entity, number=sent.sequence_number, duplicate_of=sent.duplicate_of
        )
        if due is not None and sent.duplicate_of is None and entity == QUEUE:
            self.scheduled.append(sent.sequence_number)

    async def cancel(self) -> None:
        """Cancel a scheduled message, which may be active by now."""
        if not self.scheduled:
            return
        number = self.scheduled.pop()
        operation = self.recorder.invoke("cancel", QUEUE, number=number)
        try:
            await self.bus.cancel_scheduled(QUEUE, [number])
        except OnibusError as error:
            outcome = UNKNOWN if isinstance(error, Unknown) else REFUSED
            self.recorder.complete(operation, "cancel", QUEUE, outcome, number=number)
        else:
            self.recorder.complete(operation, "cancel", QUEUE, number=number)

    async def settle(self, receiver: Settler, entity: str, got: ReceivedMessage, kind: str) -> None:
        """Complete or abandon a message."""
        token = got.token.hex() if got.token else None
        operation = self.recorder.invoke(kind, entity, number=got.sequence_number, token=token)
        outcome = OK
        try:
            await (receiver.complete(got) if kind == "complete" else receiver.abandon(got))
        except OnibusError as error:
            outcome = UNKNOWN if isinstance(error, Unknown) else REFUSED
        self.recorder.complete(
            operation, kind, entity, outcome, number=got.sequence_number, token=token
        )

    async def receive(self) -> None:
        """Receive from the queue and settle."""
        receiver = self.bus.receiver(QUEUE)
        operation = self.recorder.invoke("receive", QUEUE)
        received = await receiver.receive(self.random.choice((1, 5)), wait_ms=20)
        for got in received:
            self.recorder.received(operation, "receive", QUEUE, got)
        for got in received:
            kind = "complete" if self.random.random() < 0.8 else "abandon"
            await self.settle(receiver, QUEUE, got, kind)

    async def in_session(self, kind: str = "receive") -> bool:
        """Take a session, receive, settle, give it back; tell whether there was one."""
        recorder = self.recorder
        operation = recorder.invoke("accept", SESSIONS)
        try:
            receiver: SessionReceiver = await self.bus.accept_session(SESSIONS, wait_ms=20)
        except NoSession:
            return False
        session = receiver.session_id
        recorder.complete(
            operation, "accept", SESSIONS, session=session, until=receiver.locked_until_ms
        )
        operation = recorder.invoke("receive", SESSIONS)
        try:
            received = await receiver.receive(8)
        except OnibusError:
            return True
        for got in received:
            recorder.received(operation, kind, SESSIONS, got)
        for got in received:
            if kind == "drain" or self.random.random() < 0.8:
                await self.settle(receiver, SESSIONS, got, "complete")
            else:
                break
        operation = recorder.invoke("close", SESSIONS, session=session)
        try:
            await receiver.close()
        except OnibusError:
            return True
        recorder.complete(operation, "close", SESSIONS, session=session)
        return True

    async def forever(self, what: str) -> None:
        while True:
            if what == "send":
                await self.send(self.random.choice((QUEUE, SESSIONS)))
            elif what == "receive":
                await self.receive()
            elif what == "cancel":
                await self.cancel()
                await asyncio.sleep(0.01)
            else:
                await self.in_session()

    async def drain(self) -> None:
        """Receive and complete everything, wait for what is scheduled, until nothing is left."""
        for entity in (QUEUE, SESSIONS):
            while True:
                info = self.bus.queue(entity)
                if not info.active_count + info.scheduled_count + info.held_count:
                    break
                await self._drain_some(entity)
            operation = self.recorder.invoke("drained", entity)
            self.recorder.complete(operation, "drained", entity)

    async def _drain_some(self, entity: str) -> None:
        if entity == SESSIONS:
            await self.in_session("drain")
            return
        receiver = self.bus.receiver(entity)
        operation = self.recorder.invoke("receive", entity)
        for got in await receiver.receive(100, wait_ms=50):
            self.recorder.received(operation, "drain", entity, got)
            await self.settle(receiver, entity, got, "complete")


async def _run(
    directory: str, history: str, seed: int, drain: bool, ready: Callable[[], None]
) -> None:
    bus = await Bus.open(directory, stores=STORES, reserve_bytes=0)
    for name, settings in SETTINGS.items():
        try:
            await bus.create_queue(name, **settings)
        except EntityExists:
            continue
    busy = Busy(bus, Recorder(bus, history, seed), seed)
    ready()
    if drain:
        await busy.drain()
        await bus.close()
        return
    tasks = ["send"] * 4 + ["receive"] * 3 + ["session"] * 3 + ["cancel"]
    await asyncio.gather(*(busy.forever(what) for what in tasks))


def be_busy(
    directory: str, history: str, seed: int, drain: bool, ready: Callable[[], None]
) -> None:
    """Open the bus, say so, and be busy until killed; or drain it."""
    asyncio.run(_run(directory, history, seed, drain, ready))
