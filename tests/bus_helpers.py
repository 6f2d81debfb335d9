"""What tests of the bus share: a clock that is moved by hand, and words for what tests do often."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from onibus import Bus, Message, Quotas, ReceivedMessage, Sent
from onibus.bus import OpeningBus
from onibus.core.errors import StoreFailed
from onibus.core.message import encode
from onibus.core.partition import Partition
from onibus.core.path.route import partition_of
from onibus.store.memory import MemoryStore, Tables

P = ParamSpec("P")

#: Longer than any test takes; one that hangs fails instead.
PATIENCE_S = 180
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


class ManualClock:
    """A machine's clocks, which stand still until they are moved."""

    def __init__(self, wall: int = 1_700_000_000_000) -> None:
        self._wall = wall
        self._monotonic = 5_000
        self._boots = 1

    def wall(self) -> int:
        return self._wall

    def monotonic(self) -> int:
        return self._monotonic

    def boot(self) -> str:
        return f"boot {self._boots}"

    def advance(self, ms: int) -> None:
        """Time passes."""
        self._wall += ms
        self._monotonic += ms

    def reboot(self, wall: int) -> None:
        """The machine is started again, with a wall clock that may be right or wrong."""
        self._boots += 1
        self._monotonic = 0
        self._wall = wall

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock, forward or back; no time passes."""
        self._wall += ms


def run(
    test: Callable[P, Coroutine[Any, Any, None]], patience_s: float = PATIENCE_S
) -> Callable[P, None]:
    """Run a test that is a coroutine; what goes wrong beside it, in a callback, fails it too."""

    async def watched(*args: P.args, **kwargs: P.kwargs) -> None:
        failures: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, failure: failures.append(failure))
        await asyncio.wait_for(test(*args, **kwargs), patience_s)
        assert not failures, failures

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(watched(*args, **kwargs))

    return wrapper


# Time and stops


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds; `run` ends a test that waits too long."""
    while not condition():
        await asyncio.sleep(0.001)


def skip_seconds(seconds: float) -> None:
    """Have timers of the running loop, which is asyncio's own, believe that time has passed.

    Of `PATIENCE_S`, too: skip less in one test.
    """
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


async def until_waited_for(bus: Bus, name: str) -> None:
    """Wait until a receiver waits for messages of an entity."""
    entity = bus.broker.find(name)
    await until(lambda: any(not waiter.reply.done() for waiter in entity.waiters))


async def until_not_waited_for(bus: Bus, name: str) -> None:
    """Wait until all receivers that waited for messages of an entity have ended."""
    entity = bus.broker.find(name)
    await until(lambda: all(waiter.reply.done() for waiter in entity.waiters))


def tick(bus: Bus) -> None:
    """Let the bus do all that is due now, slice after slice."""
    broker = bus.broker
    broker.tick()
    while not broker.closed and broker.next_wake() <= broker.clock.now():
        broker.tick()


async def settle(bus: Bus) -> None:
    """Let the bus do what is due, and bring all of it to the disk."""
    for _ in range(3):
        tick(bus)
        bus.broker.flush()
        while not bus.broker.idle():
            await asyncio.sleep(0)
            bus.broker.flush()
        await asyncio.sleep(0)


async def pass_ms(bus: Bus, clock: ManualClock, ms: int) -> None:
    """Time passes, and the bus notices."""
    clock.advance(ms)
    await settle(bus)


def crash(bus: Bus) -> None:
    """Stop as a killed process does: what no commit has taken along is lost."""
    bus.broker.close()


def pull(bus: Bus, store: str) -> None:
    """A message store goes down: its disk is pulled out."""
    bus.broker.store_failed(bus.broker.stores[store], StoreFailed("pulled"))


async def reopen_store(bus: Bus, name: str) -> None:
    """Open a message store that is down, and wait until it is served."""
    store = bus.broker.stores[name]
    bus.broker.reopen(store)
    await until(lambda: store.online)


class Disks:
    """Stores in memory that outlive the bus, and can fail the next commit."""

    def __init__(self) -> None:
        self._tables: dict[str, Tables] = {}
        self.open: dict[str, MemoryStore] = {}

    def bus(self, clock: ManualClock, *stores: str, quotas: Quotas | None = None) -> OpeningBus:
        return OpeningBus(list(stores or ("main",)), self._store, clock, 0, quotas)

    def copy(self) -> Disks:
        """Return the disks as they are now, for a bus that is not closed first."""
        disks = Disks()
        disks._tables = {
            name: {table: dict(rows) for table, rows in tables.items()}
            for name, tables in self._tables.items()
        }
        return disks

    def _store(self, name: str, _known: bool = False) -> MemoryStore:
        store = self.open[name] = MemoryStore(name, self._tables.get(name))
        self._tables[name] = store.tables
        return store


# Messages


def msg(body: str = "", **fields: Any) -> Message:
    """Return a message with that text."""
    return Message(body=body.encode(), **fields)


async def send(bus: Bus, queue: str, *bodies: str, **fields: Any) -> list[Sent]:
    """Send messages with these texts, one by one."""
    return [await bus.send(queue, msg(body, **fields)) for body in bodies]


async def get(bus: Bus, queue: str, limit: int = 100, **how: Any) -> list[ReceivedMessage]:
    """Receive what is there, under locks unless `delete` is set."""
    return await bus.receiver(queue, **how).receive(limit)


async def get_one(bus: Bus, queue: str, **how: Any) -> ReceivedMessage:
    """Receive the next message; there must be one."""
    (message,) = await get(bus, queue, 1, **how)
    return message


def bodies(messages: list[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [message.sequence_number for message in messages]


def peek_everything(bus: Bus, queue: str, **how: Any) -> list[ReceivedMessage]:
    """Peek call after call until nothing is returned."""
    seen: list[ReceivedMessage] = []
    start = 0
    while found := bus.peek(queue, start=start, **how):
        seen += found
        start = found[-1].sequence_number + 1
    return seen


def picture(bus: Bus, queue: str) -> Any:
    """Return all that can be seen of a queue, for "this changed nothing"."""
    peeked = [
        (
            m.sequence_number,
            m.enqueued_time_ms,
            m.state,
            m.delivery_count,
            encode(m.message),
            m.dead_letter_reason,
        )
        for dead in (False, True)
        for m in peek_everything(bus, queue, dead_letters=dead)
    ]
    return bus.queue(queue), bus.duplicates(queue), peeked


# Partitions


def partition_at(bus: Bus, queue: str, index: int = 0) -> Partition:
    """Return the core's own view of a partition."""
    return bus.broker.find(queue).partitions[index].online()


def keys_of(index: int, count: int = 2, of: int = 16) -> list[str]:
    """Return keys that all lead to one partition."""
    found = (f"key-{n}" for n in range(10_000) if partition_of(f"key-{n}", of) == index)
    return [next(found) for _ in range(count)]


#: One key for each partition of a partitioned entity.
KEYS = [keys_of(index, 1)[0] for index in range(16)]


def index_in(bus: Bus, queue: str, store: str) -> int:
    """Return the index of a partition that lives in that store."""
    return bus.broker.find(queue).stores.index(store)


# Messages that are held


async def one_held(bus: Bus, name: str = "q", **settings: Any) -> Any:
    """Make a queue with two messages, of which one is held; return that one."""
    await bus.create_queue(name, lock_duration_ms=MINUTE, **settings)
    await send(bus, name, "held", "waiting")
    return await get_one(bus, name)
