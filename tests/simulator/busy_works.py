"""A process that is busy with what touches several partitions, to be killed.

Transactions put the same body into two queues in two stores. Messages go through a chain of queues
that forward, to a worker that completes each and sends what it made of it in one transaction. A
topic deals messages out to two subscriptions. Rows in columns are staged, in blocks that are files,
and published. Every send is written to the history before and after
(tests/simulator/history.py); with `drain` the process lets everything come to rest and writes what
is there. `check_works` then tells whether anything was half done, done twice, or lost.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa

from onibus.api.entities import subscription_name
from onibus.bus import Bus
from onibus.core.errors import EntityExists, LockLost, OnibusError, Unknown
from onibus.core.message import Message
from onibus.core.rules.rule import Rule, SqlAction, SqlFilter
from tests.simulator.history import OK, REFUSED, UNKNOWN, Anomaly, Event, encode

STORES = ("a", "b")
LEFT, RIGHT = "left", "right"
FIRST, SECOND, LAST, MADE = "first", "second", "last", "made"
BATCHES = "batches"
TOPIC = "news"
ALL, EVEN = (subscription_name(TOPIC, name) for name in ("all", "even"))
#: What is made, in this order; sources after what they forward to.
QUEUES: dict[str, dict[str, object]] = {
    LEFT: {},
    RIGHT: {},
    MADE: {},
    LAST: {"lock_duration_ms": 1_000, "max_delivery_count": 1_000_000},
    SECOND: {"enable_partitioning": True, "forward_to": LAST},
    FIRST: {"forward_to": SECOND},
    BATCHES: {},
}
#: Rows of a batch, and their size: together they are a block that is a file.
BATCH_ROWS, ROW_BYTES = 70, 8_000


def batch_rows(bodies: list[str]) -> pa.Table:
    """Return rows in columns that are large enough to be staged as blocks."""
    padding = pa.repeat(pa.scalar("x" * ROW_BYTES), len(bodies))
    return pa.table({"body": [body.encode() for body in bodies], "subject": padding})


async def _create(bus: Bus) -> None:
    for name, settings in QUEUES.items():
        try:
            await bus.create_queue(name, **settings)
        except EntityExists:
            continue
    even = Rule("even", SqlFilter("n % 2 = 0"), SqlAction("SET parity = 'even'"))
    for make in (
        lambda: bus.create_topic(TOPIC),
        lambda: bus.create_subscription(TOPIC, "all"),
        lambda: bus.create_subscription(TOPIC, "even", rules=[even]),
    ):
        try:
            await make()
        except EntityExists:
            continue


class BusyWithWorks:
    """What the tasks share."""

    def __init__(self, bus: Bus, path: str, seed: int) -> None:
        self.bus = bus
        self.random = Random(seed)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._bodies = (f"{seed}-{number}" for number in count())

    def write(self, phase: str, kind: str, body: str, **facts: object) -> None:
        event = Event(phase=phase, kind=kind, body=body, **facts)  # type: ignore[arg-type]
        os.write(self._file, encode(event))

    async def told(self, kind: str, body: str, work: Awaitable[object]) -> str:
        """Do something, and write request and outcome to the history; return the outcome."""
        self.write("invoke", kind, body)
        outcome = OK
        try:
            await work
        except OnibusError as error:
            outcome = UNKNOWN if isinstance(error, Unknown) else REFUSED
        self.write("complete", kind, body, outcome=outcome)
        return outcome

    async def transfer(self) -> None:
        """Put one body into both queues, or into none."""
        body = next(self._bodies)
        tx = self.bus.transaction()
        await tx.send(LEFT, Message(body=body.encode()))
        await tx.send(RIGHT, Message(body=body.encode()))
        await self.told("transfer", body, tx.commit())

    async def begin_chain(self) -> None:
        """Send into the chain: alone, or several bodies at once."""
        body = next(self._bodies)
        await self.told("chain", body, self.bus.send(FIRST, Message(body=body.encode())))

    async def tell_news(self) -> None:
        body = next(self._bodies)
        message = Message(body=body.encode(), properties={"n": int(body.partition("-")[2])})
        await self.told("news", body, self.bus.send(TOPIC, message))

    async def publish(self) -> None:
        """Stage a batch of columns in two pieces, and publish it."""
        bodies = [next(self._bodies) for _ in range(2 * BATCH_ROWS)]
        names: dict[str, Any] = {"producer": bodies[0], "batch": 0, "task": 0, "attempt": 0}
        for piece, start in enumerate((0, BATCH_ROWS)):
            rows = batch_rows(bodies[start : start + BATCH_ROWS])
            await self.bus.stage_arrow(BATCHES, rows, piece=piece, **names)
        for body in bodies[1:]:
            self.write("invoke", "batch", body)
        publishing = self.bus.publish(BATCHES, producer=bodies[0], batch=0, attempts=[(0, 0, 2)])
        outcome = await self.told("batch", bodies[0], publishing)
        for body in bodies[1:]:
            self.write("complete", "batch", body, outcome=outcome)
        await asyncio.sleep(0.1)

    async def work(self) -> None:
        """Complete what came through the chain, and send what was made of it, together."""
        receiver = self.bus.receiver(LAST)
        for got in await receiver.receive(5, wait_ms=20):
            tx = self.bus.transaction()
            try:
                await tx.complete(receiver, got)
                await tx.send(MADE, Message(body=got.body))
                await tx.commit()
            except LockLost:
                continue

    async def forever(self, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await act()
            except OnibusError:
                await asyncio.sleep(0.005)

    async def drain(self) -> None:
        """Let everything come to rest, then write what is there."""
        while any(self._waiting(name) for name in (FIRST, SECOND, LAST)):
            await self.work()
            await asyncio.sleep(0.01)
        for name in (LEFT, RIGHT, FIRST, SECOND, LAST, MADE, BATCHES, ALL, EVEN):
            start = 0
            while found := self.bus.peek(name, start=start, limit=500):
                for one in found:
                    self.write(
                        "complete", "there", one.body.decode(), entity=name,
                        number=one.sequence_number,
                    )  # fmt: skip
                start = found[-1].sequence_number + 1

    def _waiting(self, name: str) -> int:
        info = self.bus.queue(name)
        return info.active_count + info.held_count


async def _run(
    directory: str, history: str, seed: int, drain: bool, ready: Callable[[], None]
) -> None:
    bus = await Bus.open(directory, stores=STORES, reserve_bytes=0)
    await _create(bus)
    busy = BusyWithWorks(bus, history, seed)
    ready()
    if drain:
        await busy.drain()
        await bus.close()
        return
    acts = [busy.transfer] * 3 + [busy.begin_chain] * 3 + [busy.tell_news] * 2 + [busy.work] * 2
    acts.append(busy.publish)
    await asyncio.gather(*(busy.forever(act) for act in acts))


def be_busy_with_works(
    directory: str, history: str, seed: int, drain: bool, ready: Callable[[], None]
) -> None:
    """Open the bus, say so, and be busy until killed; or drain it."""
    asyncio.run(_run(directory, history, seed, drain, ready))


def check_works(history: Iterable[Event]) -> list[Anomaly]:
    """Return what must not be: half done, done twice, lost, or there though it was refused."""
    told: dict[str, tuple[str, str]] = {}
    there: dict[str, Counter[str]] = {name: Counter() for name in (*QUEUES, ALL, EVEN)}
    numbers: dict[str, dict[int, str]] = {name: {} for name in there}
    taken: set[tuple[str, int]] = set()
    found: list[Anomaly] = []
    for event in history:
        body, number = event.body or "", event.number or 0
        if event.kind == "there":
            known = numbers[event.entity].setdefault(number, body)
            if known != body:
                found.append(Anomaly("reuse", f"{number} of {event.entity}: {known}, {body}"))
            if (event.entity, number) in taken:
                found.append(Anomaly("redelivered after settle", f"{body} in {event.entity}"))
        elif event.kind == "taken":
            taken.add((event.entity, number))
        elif event.phase == "invoke":
            told[body] = (event.kind, UNKNOWN)
        elif event.phase == "complete":
            told[body] = (event.kind, event.outcome)
    for name, given in numbers.items():
        # A message may be seen several times under one number, until it was completed.
        there[name].update(given.values())
    found += [Anomaly("left over", f"{body} in {name}")
              for name in (FIRST, SECOND, LAST) for body in there[name]]  # fmt: skip
    for body, (kind, outcome) in told.items():
        places = {
            "transfer": [LEFT, RIGHT],
            "chain": [MADE],
            "batch": [BATCHES],
            "news": [ALL, EVEN] if int(body.partition("-")[2]) % 2 == 0 else [ALL],
        }[kind]
        found += _check_one(body, outcome, [there[place][body] for place in places])
    for name, counted in there.items():
        found += [Anomaly("ghost", f"{body} in {name}") for body in counted if body not in told]
    for name in (LEFT, RIGHT, MADE, BATCHES):
        if sorted(numbers[name]) != list(range(1, len(numbers[name]) + 1)):
            found.append(Anomaly("gap", f"the numbers of {name} are not 1…{len(numbers[name])}"))
    return found


def _check_one(body: str, outcome: str, counts: list[int]) -> list[Anomaly]:
    words = f"{body}, {outcome}: {counts}"
    if max(counts) > 1:
        return [Anomaly("twice", words)]
    if min(counts) != max(counts):
        return [Anomaly("half done", words)]
    if outcome == OK and not counts[0]:
        return [Anomaly("lost", words)]
    if outcome == REFUSED and counts[0]:
        return [Anomaly("ghost", words)]
    return []
