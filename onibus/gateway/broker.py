"""The broker: entities, stores and time in one object, which one thread owns.

It never waits: its caller calls `tick` when `next_wake` is due, passes a `call_soon`, and gets
results through replies. So the same broker runs under asyncio, in tools and in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from onibus.core.commands import Command
from onibus.core.errors import (
    AlreadyOpen,
    BusClosed,
    Damaged,
    EntityNotFound,
    Failed,
    InvalidArgument,
    OnibusError,
    PartitionOffline,
    Refused,
)
from onibus.core.pages import Pages
from onibus.core.partition import Partition
from onibus.core.tally import Tally
from onibus.core.timers import Timers
from onibus.directory.claims import Claims
from onibus.directory.entity import Entity, Waiters, new_partition, positions_in
from onibus.directory.idling import watch_idle
from onibus.directory.namespace import NAME, REOPEN_MS, Namespace
from onibus.directory.probing import Probing
from onibus.directory.producers import Producers
from onibus.directory.quotas import Quotas
from onibus.directory.reading_back import Reading
from onibus.directory.timekeeping import keep_time
from onibus.directory.turns import Turns
from onibus.directory.works import Works
from onibus.gateway.forwarding import Forwarding
from onibus.gateway.receiving import serve
from onibus.gateway.sending import reroute
from onibus.gateway.ticking import ring
from onibus.shard.alarms import Alarms
from onibus.shard.clock import BusClock, Clock
from onibus.shard.commits import CommitLoop
from onibus.shard.disk_room import RESERVE_BYTES, DiskWatch
from onibus.shard.housekeeping import Housekeeping
from onibus.shard.opening import Opening, read_shard, serve_shard
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import Reply
from onibus.shard.shard import SendRequest, Shard
from onibus.shard.writer import Writer
from onibus.store.interface import OpenStore

T = TypeVar("T")

#: How long after its opening a store is searched for what a crash left behind.
ORPHANS_AFTER_MS = 30_000
#: Timers that ring before others have their turn.
TIMERS_A_SLICE = 200


class Broker:
    """A namespace at work."""

    shard_type: ClassVar[type[Shard]] = Shard

    def __init__(
        self,
        clock: Clock,
        store_names: Iterable[str],
        open_store: OpenStore,
        make_writer: Callable[[str], Writer],
        call_soon: Callable[[Callable[[], None]], object],
        reserve_bytes: int = RESERVE_BYTES,
        quotas: Quotas | None = None,
        written_ms: int | None = None,
        probe_ms: int = 0,
        inline_commits: bool = False,
    ) -> None:
        self.clock = BusClock(clock, self._clock_stepped)
        #: when the namespace's files were last written, by the clock of that time
        self.written_ms = written_ms
        self.call_soon = call_soon
        self.timers = Timers()
        self.disk = DiskWatch(reserve_bytes)
        self.stores: dict[str, Shard] = {
            name: self.shard_type(name, self, open_store, make_writer) for name in store_names
        }
        # With several stores, the disk of one must not stop the others.
        self.inline_commits = inline_commits and len(self.stores) == 1
        self.turns = Turns(self)
        self.works = Works(self)
        self.producers = Producers(self)
        self.forwarding = Forwarding(self)
        self.claims = Claims(self)
        self.namespace: Namespace = Namespace(self, open_store, make_writer, quotas or Quotas())
        owners: list[Namespace | Shard] = [self.namespace, *self.stores.values()]
        self.houses = {
            one.name: Housekeeping(
                one.name, one.threads, self.timers, self.clock, partial(self.went_down, one.name)
            )
            for one in owners
        }
        self.probing = Probing(self, probe_ms)
        #: the last things that went wrong
        self.alarms = Alarms()
        #: what happened in entities that were deleted
        self.past = Tally()
        self.partitions: dict[int, ShardPartition] = {}
        self._awake: set[Waiters] = set()
        #: deletes that gather in this turn of the event loop (gateway/settling.py)
        self.deletes: dict[Entity, list[tuple[Sequence[bytes], Reply]]] = {}
        self.closed = False

    # Opening and closing

    def open(self) -> None:
        """Open all stores on this thread."""
        for works in self.opening():
            for work in works:
                work()

    def opening(self) -> Iterator[list[Callable[[], None]]]:
        """Open all stores; yield works for other threads, which must be done before it continues.

        A message store that fails stays offline, unless another process has it open.
        """
        readings: list[Reading[Any]] = []
        try:
            namespace = Reading(self.namespace.read)
            readings.append(namespace)
            yield [namespace.run]
            self.namespace.open(namespace.take())
            found = [(store, self._reading(store)) for store in self.stores.values()]
            readings += [reading for _, reading in found]
            yield [reading.run for _, reading in found]
            outcomes = [self._serve_read(store, reading) for store, reading in found]
            errors = [error for error in outcomes if error is not None]
            if len(errors) == len(self.stores) or any(isinstance(e, AlreadyOpen) for e in errors):
                raise max(errors, key=lambda error: isinstance(error, AlreadyOpen))
            if self.namespace.store is not None:
                self.works.count_opening(self.namespace.store)
            # Bus time continues from the latest that any store has seen, so nothing starts before.
            for store in self.stores.values():
                if store.online:
                    self._start(store)
            keep_time(self)
        except BaseException:
            for reading in readings:
                reading.close()
            self.close()
            raise

    def _reading(self, store: Shard) -> Reading[Opening]:
        """Return the opening of a store and the reading of its partitions, for any thread."""
        identity = self.namespace.store_identity(store.name)
        return Reading(lambda: read_shard(store, self, identity))

    def _serve_read(self, store: Shard, reading: Reading[Opening]) -> BaseException | None:
        """Use a store that was read; return why it stays offline, or None."""
        try:
            if not serve_shard(store, self, reading.take()):
                # Its entities have changed since: read it again.
                self.call_soon(partial(self._open_anew, store))
                return PartitionOffline(f"store {store.name} is opening")
        except (Failed, Refused) as error:
            self._alarm(store, error)
            return error
        self.alarms.opened(f"store {store.name}", store.notice)
        self.probing.proven(store.name)
        self.namespace.know_store(store.name, store.identity)
        self.works.read(store)
        self.clock.not_before(store.seen)
        return None

    def _start(self, store: Shard) -> None:
        """Serve the partitions of a store that was read."""
        for partition in store.partitions.values():
            self.take_up(partition)
        self.works.store_opened(store, store.staged)
        for entity in dict.fromkeys(partition.entity for partition in store.partitions.values()):
            self.wake_all(entity)
        store.flush_later()
        self.timers.set(("orphans", store.name), self.clock.now() + ORPHANS_AFTER_MS)

    def take_up(self, partition: ShardPartition) -> None:
        """Serve a partition that is online."""
        # Being down is not being idle, and who only waited left no trace on the disk.
        for entity in (partition.entity, *partition.entity.outlets()):
            entity.last_used = self.clock.now()
        self.partitions[partition.id] = partition
        partition.store.watch(partition)
        partition.store.tidy_soon(partition)
        self.claims.take_up(partition)

    def close(self) -> None:
        """Close all stores; the caller has flushed before, if it keeps the data."""
        self.closed = True
        for entity in self.namespace.entities.values():
            for waiters in (entity, entity.log_waiters):
                waiters.send_away(BusClosed("the bus is closed"))
        for store in self.stores.values():
            store.stop()
        self.namespace.stop()

    def idle(self) -> bool:
        """Return whether no write is in progress or waiting."""
        loops = [store.loop for store in self.stores.values() if store.loop is not None]
        waiting = bool(self.deletes) or any(loop.busy or loop.waiting for loop in loops)
        sending = any(one.inbox or one.threads.in_transit for one in self.stores.values())
        owed = self.namespace.deciding or self.claims.under_way
        owed |= self.probing.under_way or self.turns.waiting or self.works.publishing
        return not (waiting or sending or owed)

    def flush(self) -> None:
        """Start committing everything that waits, asked for or not."""
        for store in self.stores.values():
            store.commit_all()

    # Using a partition

    def find(self, name: str, kind: str | None = None) -> Entity:
        """Return an entity by its name; of that kind, if one is given."""
        entity = self.namespace.entities.get(name)
        if entity is None and isinstance(name, str):
            entity = self.namespace.entities.get(name.lower())
        if entity is None:
            raise EntityNotFound(f"no entity {name!r}")
        if kind is not None and kind != entity.kind:
            raise EntityNotFound(f"{entity.name} is a {entity.kind}, not a {kind}")
        return entity

    def partition(self, partition_id: int) -> ShardPartition | None:
        """Return where a partition sits, online or not; None where its entity is gone."""
        for store in self.stores.values():
            if partition_id in store.partitions:
                return store.partitions[partition_id]
        return None

    def apply(self, partition: ShardPartition, command: Command[T], now: int | None = None) -> T:
        """Carry out a command on a partition; see `Shard.apply`."""
        return partition.store.apply(partition, command, now)

    def use(
        self, entity: Entity, partition: ShardPartition, command: Command[T], now: int | None = None
    ) -> T:
        """Carry out a command on the messages of an entity in a partition; see `apply`."""
        try:
            result = partition.store.apply(partition, command, now)
        except EntityNotFound:
            raise EntityNotFound(f"{entity.name} was deleted") from None
        if command.is_use:
            entity.last_used = partition.entity.last_used
        return result

    def check(self, entity: Entity, partition: ShardPartition, command: Command[Any]) -> None:
        """Raise the rejection of a command that would be rejected at this moment."""
        try:
            partition.store.check(partition, command)
        except EntityNotFound:
            raise EntityNotFound(f"{entity.name} was deleted") from None

    def advance(self, partition: ShardPartition, now: int) -> None:
        """Bring a partition up to that bus time."""
        partition.store.advance(partition, now)

    def changed(self, partition: ShardPartition) -> None:
        """Wake receivers of a partition whose messages may have become available."""
        self.wake_all(partition.entity)

    def settings_changed(self, outlet: Entity) -> None:
        """Forward messages to where the new settings of an entity say."""
        self.forwarding.changed(outlet)

    def new_partition(self, partition: ShardPartition, pages: Pages, boot: int) -> Partition:
        """Return an empty partition with the settings and subscriptions of its entity."""
        return new_partition(partition, pages, self.namespace.secret, boot, self.clock.offsets)

    def positions(self, partition: ShardPartition) -> list[tuple[int, str, int]]:
        """Return how far each named reader is in a partition."""
        return positions_in(partition)

    def wake_all(self, entity: Entity) -> None:
        """Wake receivers and forwarding of a queue or topic: it may have messages to deliver."""
        for outlet in list(entity.listening.values()):
            self.wake(outlet)
            self.wake(outlet.log_waiters)
            if outlet.forwards:
                self.forwarding.wake(outlet)
            elif not outlet.waiters and not outlet.log_waiters.waiters:
                del entity.listening[outlet.number]

    def wake(self, waiters: Waiters) -> None:
        """Serve waiting receivers: messages may have become available."""
        if waiters.waiters and waiters not in self._awake:
            self._awake.add(waiters)
            self.call_soon(lambda: self._serve(waiters))

    def _serve(self, waiters: Waiters) -> None:
        self._awake.discard(waiters)
        serve(self, waiters)

    # Things that go wrong

    def store_failed(self, store: Shard, error: BaseException) -> None:
        """Drop the memory of a failed store, and reroute sends that it had not applied."""
        self._alarm(store, error)
        store.take_offline(f"store {store.name} failed: {error}")
        store.turn_away(PartitionOffline(f"store {store.name} failed"))

    def reroute(self, request: SendRequest, error: OnibusError) -> None:
        """Fail a send that was not tried here, or pass it to another partition (P5)."""
        reroute(self, request, error)

    def _alarm(self, store: Shard, error: BaseException) -> None:
        store.error = error
        self.alarms.raise_one(f"store {store.name}", error)
        for partition in store.partitions.values():
            partition.offline = str(error)
        if not isinstance(error, Damaged):
            self.timers.set(("reopen", store.name), self.clock.now() + REOPEN_MS)

    def reopen(self, store: Shard) -> None:
        """Open a store that failed, on its own thread: other stores stay available."""
        store.take_offline("its store is opening")
        if store.threads.leaving:
            # A commit is still under way in its files. Time may pass until a disk responds.
            store.threads.when_left(lambda: self._open_anew(store))
            return
        if store.threads.opening:
            return
        reading = self._reading(store)

        def read(_: BaseException | None) -> None:
            if self.closed:
                reading.close()
            elif self._serve_read(store, reading) is None:
                self._start(store)

        store.threads.open(reading.run, read)

    def _open_anew(self, store: Shard) -> None:
        if not self.closed and not isinstance(store.error, Damaged):
            self.reopen(store)

    # Time

    def _clock_stepped(self) -> None:
        """Come back to every partition in time: its scheduled messages follow the wall clock."""
        for partition in self.partitions.values():
            partition.store.watch(partition)

    def next_wake(self) -> int:
        """Return the bus time at which `tick` has something to do."""
        return self.timers.next_due()

    def tick(self) -> None:
        """Run a slice of the actions that are due; the rest is due when others had their turn."""
        now = self.clock.now()
        for _ in range(TIMERS_A_SLICE):
            if self.closed or (key := self.timers.pop(now)) is None or ring(self, *key):
                return

    def is_behind(self) -> bool:
        """Return whether a slice left due changes for the next one."""
        soon = self.clock.now() + 1
        return any(
            partition.store.is_due(partition, soon) for partition in self.partitions.values()
        )

    def went_down(self, name: str, loop: CommitLoop, error: BaseException) -> None:
        """Take a failed store offline, unless it has been reopened since the failed work began."""
        if name == NAME:
            self.namespace.failed(loop, error)
        elif self.stores[name].loop is loop:
            self.store_failed(self.stores[name], error)
        elif isinstance(error, Damaged) and not self.stores[name].online:
            # It was taken offline while its pages were read again: now it is known to be damaged.
            self._alarm(self.stores[name], error)
            self.timers.cancel(("reopen", name))

    def committed(self, shard: Shard | Namespace, loop: CommitLoop) -> None:
        """Note that a store has committed: its disk responds, and its housekeeping may be due."""
        self.probing.proven(shard.name)
        self.houses[shard.name].committed(loop)

    def forget(self, entity: Entity) -> None:
        """Drop the partitions of a deleted entity and fail its pending calls."""
        self.timers.cancel(("idle", entity.incarnation))
        for name in entity.readers:
            self.timers.cancel(("reader", (entity.incarnation, name)))
        self.claims.forget(entity)
        self.past.add(entity.tally)
        if entity.topic is not None:
            entity.leave_topic()
            return
        for partition in entity.partitions:
            partition.store.drop(partition)
            self.partitions.pop(partition.id, None)

    def install(self, entity: Entity) -> None:
        """Assign partitions of a new entity to stores; a subscription uses those of its topic."""
        if entity.forwards:
            entity.listen()
        if entity.topic is not None:
            entity.join_topic()
            watch_idle(self, entity)
            return
        for index, name in enumerate(entity.stores):
            if name not in self.stores:
                raise InvalidArgument(
                    f"store {name!r} has partitions of {entity.name!r}: "
                    "name it in `stores` when you open the bus"
                )
            partition = ShardPartition(entity, index, self.stores[name])
            entity.partitions.append(partition)
            partition.store.add(partition)
        watch_idle(self, entity)
