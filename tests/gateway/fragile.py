"""What tests of whole-or-nothing share: disks that fail at a chosen commit, and loops over them.

A scenario is tried again and again: the power goes before the first commit that it causes, before
the second, … until it comes through; and each store fails at its first commit, its second, ….
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from onibus import Bus
from onibus.core.errors import OnibusError, Refused, StoreFailed, Unknown
from onibus.core.records import STAGED, WORKS, Row, WriteBatch
from onibus.store.memory import MemoryStore, Tables
from tests.bus_helpers import HOUR, SECOND, Disks, ManualClock, crash, pass_ms, settle
from tests.gateway.topic_helpers import reopen, sound
from tests.staged_blocks import ownerless

#: Prepares a bus, and returns what the other two get.
Prepare = Callable[[Bus], Awaitable[Any]]
#: Does what must happen whole or not at all.
Act = Callable[[Bus, Any], Awaitable[Any]]
#: Tells whether it has happened; fails where it has happened in part.
Happened = Callable[[Bus, Any], Awaitable[bool]]


class FragileStore(MemoryStore):
    """A store whose commits may be the ones that fail."""

    def __init__(self, name: str, tables: Tables | None, disks: FragileDisks) -> None:
        super().__init__(name, tables)
        self._disks = disks

    def commit(self, batch: WriteBatch) -> None:
        self._disks.before_commit(self)
        super().commit(batch)


class FragileDisks(Disks):
    """Stores in memory that lose their power, or fail, at a chosen commit."""

    def __init__(self) -> None:
        super().__init__()
        self._counting = threading.Lock()
        self._left: int | None = None
        self._store_fails: tuple[str, bool] | None = None
        #: what was chosen has come to pass
        self.struck = False
        #: stores that cannot be opened
        self.broken: set[str] = set()

    def cut_power(self, after: int) -> None:
        """Let all stores stop for good after so many commits."""
        self._left, self._store_fails, self.struck = after, None, False

    def fail(self, store: str, after: int, *, kept: bool) -> None:
        """Let one store fail once, after so many commits of its own."""
        self._left, self._store_fails, self.struck = after, (store, kept), False

    def mend(self) -> None:
        """Let everything go well from now on."""
        self._left = None

    def before_commit(self, store: FragileStore) -> None:
        with self._counting:
            if self._left is None:
                return
            if self._store_fails is not None and store.name != self._store_fails[0]:
                return
            self._left -= 1
            if self._left >= 0:
                return
            self.struck = True
            if self._store_fails is None:
                raise StoreFailed("the power is out")
            store.fail_next(kept=self._store_fails[1])
            self._left = None

    def rows(self, store: str, table: Any) -> dict[Row, Row]:
        """Return what is on a disk."""
        return self.tables(store)[table]

    def tables(self, store: str) -> Tables:
        """Return everything that is on a disk."""
        return self._tables[store]

    def _store(self, name: str, _known: bool = False) -> MemoryStore:
        if name in self.broken:
            raise StoreFailed("it is broken")
        store = self.open[name] = FragileStore(name, self._tables.get(name), self)
        self._tables[name] = store.tables
        return store


async def quiet(bus: Bus) -> None:
    """Let the bus do what it does by itself, such as forwarding, until it comes to rest."""
    before = -1
    while before != (now := _commits(bus)):
        before = now
        await settle(bus)


def _commits(bus: Bus) -> int:
    return sum(store.loop.commits for store in bus.broker.stores.values() if store.loop is not None)


async def recover(bus: Bus, clock: ManualClock) -> None:
    """Let failed stores come back, and what waited for them go on."""
    for _ in range(4):
        await quiet(bus)
        await pass_ms(bus, clock, SECOND)
    await quiet(bus)


def nothing_staged(disks: FragileDisks) -> None:
    """No store has a part of a work left, and the namespace no work."""
    for name in disks.open:
        assert disks.rows(name, STAGED) == {}, name
        assert disks.rows(name, WORKS) == {}, name
        assert ownerless(disks.tables(name)) == [], name


async def nothing_held(bus: Bus, clock: ManualClock) -> None:
    """When all locks have run out, nothing is held: no work has pinned a message for ever."""
    await pass_ms(bus, clock, HOUR)
    for entity in bus.broker.namespace.entities.values():
        for partition in entity.partitions:
            for subscription in partition.online().subscriptions.values():
                assert subscription.held() == 0, entity.name
                assert not subscription.holds


async def _try(act: Act, bus: Bus, made: Any) -> BaseException | None:
    """Act, and return what came in between."""
    try:
        await act(bus, made)
        await quiet(bus)
    except OnibusError as error:
        return error
    return None


def _judge(error: BaseException | None, struck: bool, happened: bool) -> None:
    """Compare what the caller was told with what has happened."""
    if error is None:
        assert happened
    elif isinstance(error, Refused):
        assert not happened, f"it happened, and was refused: {error!r}"
    else:
        assert isinstance(error, Unknown), repr(error)
    assert struck or error is None, repr(error)


async def crash_everywhere(
    clock: ManualClock,
    prepare: Prepare,
    act: Act,
    happened: Happened,
    stores: tuple[str, ...] = ("a", "b"),
    at_once: bool = False,
) -> int:
    """Cut the power before each commit in turn; return how many commits there were.

    `at_once`: what happened shows as soon as the bus is open.
    """
    for commits in count():
        disks = FragileDisks()
        bus = await disks.bus(clock, *stores)
        made = await prepare(bus)
        await quiet(bus)
        disks.cut_power(commits)
        error = await _try(act, bus, made)
        crash(bus)
        disks.mend()
        bus = await disks.bus(clock, *stores)
        if at_once:
            await happened(bus, made)
        await recover(bus, clock)
        await _look_after(bus, disks, clock, error, made, happened, stores)
        if not disks.struck:
            return commits
    raise AssertionError


async def fail_everywhere(
    clock: ManualClock,
    prepare: Prepare,
    act: Act,
    happened: Happened,
    stores: tuple[str, ...] = ("a", "b"),
) -> None:
    """Let each store fail at each of its commits, which is kept or is not; the bus lives on."""
    for name in (*stores, "namespace"):
        for kept in (True, False):
            for commits in count():
                disks = FragileDisks()
                bus = await disks.bus(clock, *stores)
                made = await prepare(bus)
                await quiet(bus)
                disks.fail(name, commits, kept=kept)
                error = await _try(act, bus, made)
                disks.mend()
                await recover(bus, clock)
                await _look_after(bus, disks, clock, error, made, happened, stores)
                if not disks.struck:
                    break


async def _look_after(
    bus: Bus,
    disks: FragileDisks,
    clock: ManualClock,
    error: BaseException | None,
    made: Any,
    happened: Happened,
    stores: tuple[str, ...],
) -> None:
    """Look at what is left after a failure, then once more after a restart."""
    sound(bus)
    _judge(error, disks.struck, await happened(bus, made))
    nothing_staged(disks)
    for entity in bus.broker.namespace.entities.values():
        # Nothing is on its way.
        assert not any(one.pending_bytes for one in entity.partitions), entity.name
    bus = await reopen(bus, disks, clock, *stores)
    await nothing_held(bus, clock)
    sound(bus)
    await bus.close()
