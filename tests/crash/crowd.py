"""HTTP, AMQP and SQS clients together, and what their histories show."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from onibus.client import Retry
from tests.crash import busy_works_clients as works
from tests.crash.busy_amqp import AmqpClient
from tests.crash.busy_clients import COMMON, QUEUE, SESSIONS, SETTINGS, WINDOW_MS, Clients, History
from tests.crash.busy_sqs import FIFO, SqsClient
from tests.over_http.on_disk import Place
from tests.simulator.bounds import upper_bound
from tests.simulator.busy_works import check_works
from tests.simulator.history import OK, Anomaly, Checker

#: Outlives any restart.
PATIENT = Retry(attempts=10_000, first_ms=20, longest_ms=100)
#: The longest that clients need to end, or a queue to be drained, on a machine that is very busy.
PATIENCE_S = 1_800
SENDS = ("send", "schedule", "transfer", "chain", "news")
#: What a run must have done to prove anything.
KINDS = {
    "send", "schedule", "cancel", "receive", "accept", "complete", "abandon", "defer",
    "dead-letter", "amqp send", "amqp schedule", "amqp receive", "sqs send", "sqs receive",
    "transfer", "chain", "news", "there", "taken",
}  # fmt: skip
#: The rules of `history` and `busy_works`, as the promises group them.
GROUPS = {
    "lost": ("lost", "stuck", "left over", "half done"),
    "twice": ("duplicate stored", "twice", "redelivered after settle"),
    "out of order": ("order",),
    "sequence numbers missing or reused": ("gap", "reuse"),
}


@dataclass
class Seen:
    """What clients saw: acknowledged operations by kind, and anomalies."""

    counts: Counter[str] = field(default_factory=Counter)
    anomalies: list[Anomaly] = field(default_factory=list)

    def add(self, other: Seen) -> None:
        self.counts += other.counts
        self.anomalies += other.anomalies

    @property
    def sends(self) -> int:
        """Acknowledged sends; a transaction is one."""
        return sum(self.counts[kind] for kind in SENDS)

    def verdict(self) -> str:
        """Return how many anomalies there were, in the words of the promises."""
        rules = Counter(anomaly.rule for anomaly in self.anomalies)
        groups = {name: sum(rules[rule] for rule in group) for name, group in GROUPS.items()}
        groups["other anomalies"] = len(self.anomalies) - sum(groups.values())
        return ", ".join(f"{name} {count}" for name, count in groups.items())

    def report(self, faults: int, fault: str) -> str:
        """Return the figures of a run, with the bounds that follow from them."""
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items()))
        return (
            f"operations: {kinds}\n{self.verdict()}\n"
            f"rate of failure with 95 % confidence (3/n): {upper_bound(faults)} per {fault}, "
            f"{upper_bound(self.sends)} per acknowledged send (n = {faults:,} and {self.sends:,})"
        )


class Crowd:
    """The clients of one server. A seed decides what they ask."""

    def __init__(
        self, place: Place, amqp_port: int, sqs_port: int, seed: int, window_ms: int = WINDOW_MS
    ) -> None:
        self._place = place
        self._amqp_port = amqp_port
        self._seed = seed
        self._window_ms = window_ms
        #: of the entities that `history` checks, and of those that `busy_works` does
        self.history, self.works_history = History(), History()
        self._sqs_port = sqs_port
        self._flag, self._stop = threading.Event(), asyncio.Event()
        self._running: list[asyncio.Future[None]] = []

    async def create(self) -> None:
        """Create all entities."""
        window = {"duplicate_detection_window_ms": self._window_ms}
        async with self._place.client() as client:
            for name, settings in SETTINGS.items():
                await client.create_queue(name, **{**COMMON, **window, **settings})
            await works.create(client)
        sqs = SqsClient(self._sqs_port, self.history, 0, threading.Event())
        await asyncio.to_thread(sqs.create)

    async def start(self) -> None:
        """Be busy from now on; after `finish` this may be called again."""
        self._seed += 1
        self._flag, self._stop = threading.Event(), asyncio.Event()
        self._stack = AsyncExitStack()
        patient = await self._stack.enter_async_context(self._place.client(PATIENT))
        once = await self._stack.enter_async_context(self._place.client())
        self._clients = Clients(patient, self.history, self._seed)
        self._works = works.WorksClients(once, self.works_history, self._seed)
        tasks = [self._clients.run(self._stop), self._works.run(self._stop)]
        tasks += [asyncio.to_thread(run) for run in self._threads()]
        self._running = [asyncio.ensure_future(task) for task in tasks]

    def _threads(self) -> list[Callable[[], None]]:
        seed, port, flag = self._seed, self._amqp_port, self._flag
        amqp = [AmqpClient(port, self.history, seed * 10 + at, flag) for at in (1, 2)]
        self._sqs = [SqsClient(self._sqs_port, self.history, seed * 10 + at, flag) for at in (1, 2)]
        transfer = works.transfer_by_amqp
        return [
            *(one.run for one in amqp),
            *(one.run for one in self._sqs),
            lambda: transfer(port, self.works_history, seed, flag),
        ]

    async def be_thorough(self) -> None:
        """Wait until everything was done at least once; the server runs."""
        await self._in_time("a first time of everything", self._everything_done())

    async def _everything_done(self) -> None:
        while missing := KINDS - self.history.done - self.works_history.done:
            ended = [one for one in self._running if one.done()]
            assert not ended, f"a client ended before {missing} was done: {ended}"
            await asyncio.sleep(0.02)

    async def finish(self) -> Seen:
        """Stop being busy, take everything out of a server that runs, and check."""
        for history in (self.history, self.works_history):
            history.pause_s = history.late_s = 0.0
        self._flag.set()
        self._stop.set()
        async with self._stack:
            await self._in_time("the clients' end", asyncio.gather(*self._running))
            await self._in_time("the queues", self._clients.drain())
            await self._in_time("the FIFO queue", self._drain_fifo())
            await self._in_time("the transactions' queues", self._works.drain())
        return self.check()

    async def _in_time(self, name: str, work: Awaitable[object]) -> None:
        """Wait for a step of the end; fail after so long that it hangs."""
        try:
            await asyncio.wait_for(work, PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"{name} took longer than {PATIENCE_S} s") from None

    def give_up(self) -> None:
        """End the clients of a run that failed: their threads would outlive it."""
        self.history.is_over = self.works_history.is_over = True
        self._flag.set()
        for one in self._running:
            one.cancel()

    async def _drain_fifo(self) -> None:
        while await self._clients.left(FIFO):
            if not await asyncio.to_thread(self._sqs[0].drain):
                await asyncio.sleep(0.02)
        await self.history.ask("drained", FIFO, asyncio.sleep(0))

    def check(self) -> Seen:
        """Return what the histories show."""
        checker = Checker(
            self._window_ms,
            partitioned=frozenset({QUEUE}),
            drained=frozenset({QUEUE, SESSIONS, FIFO}),
            slack_ms=20,
            repeatable=frozenset({FIFO}),
        )
        anomalies = checker.check(self.history.events) + check_works(self.works_history.events)
        counts = Counter({"repeated delete": checker.repeats})
        for event in (*self.history.events, *self.works_history.events):
            if event.phase == "complete":
                done = event.outcome == OK
                counts[event.kind if done else event.outcome] += 1
            counts["dropped"] += event.duplicate_of is not None
        return Seen(counts, anomalies)
