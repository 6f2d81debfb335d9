"""Buses that are all the same: the same input gets the same answer, byte for byte.

Made once with entities and messages, then opened again and again from copies of its rows. No thread
and no loop runs: `settle` does all that is due, until nothing is. Keys of hashes and tokens are
fixed, the clock stands still, and transactions are numbered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import cache
from itertools import count
from types import SimpleNamespace

from onibus import Bus, Message
from onibus.bus import OpeningBus
from onibus.core.records import META, WriteBatch
from onibus.directory.namespace import NAME
from onibus.gateway.broker import Broker
from onibus.protocols import tracking
from onibus.protocols.amqp.service_bus import transactions
from onibus.shard.writer import Done, Work
from onibus.store.memory import MemoryStore, Tables
from tests.bus_helpers import ManualClock

#: The moment at which all of them stand.
NOW_MS = 1_800_000_000_000


class _Writer:
    """Commits as part of what is due."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon

    def submit(self, work: Work, done: Done) -> None:
        work()
        self._soon(lambda: done(None))

    run_here = submit

    def stop(self) -> None:
        """There is no thread to wait for."""


class _Store(MemoryStore):
    """Counts what is written."""

    commits = 0

    def commit(self, batch: WriteBatch) -> None:
        self.commits += 1
        super().commit(batch)


class World(Bus):
    """A bus that does what is due when it is told to."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()
        self._stores = {name: _Store(name, _copy(found)) for name, found in template().items()}
        broker = Broker(
            ManualClock(NOW_MS),
            ["main"],
            lambda name, _: self._stores[name],
            lambda name: _Writer(self._soon.append),
            self._soon.append,
            0,
        )
        super().__init__(broker, _LOOP)
        broker.open()
        broker.flush()
        self.settle()
        numbers = count(1)
        self._secrets = SimpleNamespace(
            token_bytes=lambda size: next(numbers).to_bytes(size, "big")
        )

    def use(self) -> None:
        """Let this world number transactions from now on: one is used at a time."""
        vars(transactions)["secrets"] = self._secrets
        vars(tracking)["tracked"] = lambda text, host, path: text

    @property
    def changes(self) -> int:
        """How often something was written."""
        return sum(store.commits for store in self._stores.values())

    @property
    def is_settled(self) -> bool:
        """Tell whether nothing is due."""
        return not self._soon and self.broker.idle()

    def settle(self) -> None:
        """Do what is due, until nothing is."""
        soon = self._soon
        self.broker.flush()
        while soon:
            soon.popleft()()


#: Never run; a bus wants one.
_LOOP = asyncio.new_event_loop()


def _copy(tables: Tables) -> Tables:
    return {table: dict(rows) for table, rows in tables.items()}


@cache
def template() -> dict[str, Tables]:
    """Return the rows of a bus with entities of each kind, and messages in each state."""
    stores: dict[str, MemoryStore] = {}

    def open_store(name: str, _: bool) -> MemoryStore:
        stores[name] = MemoryStore(name)
        if name == NAME:
            batch = WriteBatch()
            batch.put(META, ("secret", bytes(32)))
            stores[name].commit(batch)
        return stores[name]

    async def make() -> None:
        async with OpeningBus(["main"], open_store, ManualClock(NOW_MS), 0) as bus:
            await _fill(bus)

    asyncio.run(make())
    return {name: store.tables for name, store in stores.items()}


async def _fill(bus: Bus) -> None:
    await bus.create_queue("q", requires_duplicate_detection=True, max_message_bytes=4_096)
    await bus.create_queue("s", requires_session=True)
    await bus.create_topic("t")
    await bus.create_subscription("t", "u")
    for number in range(6):
        await bus.send("q", Message(body=b"%d" % number, message_id=str(number)))
    await bus.schedule("q", Message(body=b"later"), NOW_MS + 60_000)
    async with bus.receiver("q") as receiver:
        first, second = await receiver.receive(2)
        await receiver.defer(first)
        await receiver.dead_letter(second, reason="why")
    await bus.send("s", Message(body=b"x", session_id="a"))
    await bus.send("t", Message(body=b"x", properties={"n": 1}))
