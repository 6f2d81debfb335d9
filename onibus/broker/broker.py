"""The broker: entities, stores and time, held together. One thread owns all of it.

It does no waiting of its own: whoever runs it calls `tick` when `next_wake` has come, hands it a
`call_soon`, and is answered through replies. So the same broker runs under asyncio, in tools and in
the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from onibus.broker.admission import RESERVE_BYTES, DiskWatch
from onibus.broker.alarms import Alarms
from onibus.broker.claims import Claims
from onibus.broker.clock import BusClock, Clock
from onibus.broker.commit_loop import CommitLoop
from onibus.broker.entity import Entity, Seat
from onibus.broker.failing import partition_failed
from onibus.broker.forwarding import Forwarding
from onibus.broker.housekeeping import Housekeeping
from onibus.broker.idling import watch_idle
from onibus.broker.message_store import MessageStore
from onibus.broker.namespace import NAME, REOPEN_MS, Namespace
from onibus.broker.probing import Probing
from onibus.broker.producers import Producers
from onibus.broker.quotas import Quotas
from onibus.broker.receiving import serve
from onibus.broker.sending import apply_inbox, move_elsewhere
from onibus.broker.ticking import TIDY_AFTER_MS, ring, tidy
from onibus.broker.timekeeping import keep_time
from onibus.broker.turns import Turns
from onibus.broker.works import Works
from onibus.broker.writer import Writer
from onibus.core.errors import (
    AlreadyOpen,
    BusClosed,
    Damaged,
    EntityNotFound,
    Failed,
    InvalidArgument,
    PartitionOffline,
    Refused,
)
from onibus.core.partition import Partition
from onibus.core.path.expire import pass_time
from onibus.core.records import WriteBatch
from onibus.core.subscription import Subscription
from onibus.core.tally import Tally
from onibus.core.timers import Timers
from onibus.store.interface import OpenStore

if TYPE_CHECKING:
    from onibus.broker.deleting import Deletion

T = TypeVar("T")
P = ParamSpec("P")

#: Records that nobody waits for (locks) are on the disk after this time at the latest.
FLUSH_MS = 50
#: How long after its opening a store is searched for what a crash left behind.
ORPHANS_AFTER_MS = 30_000


class Broker:
    """A namespace at work."""

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
    ) -> None:
        self.clock = BusClock(clock, self._clock_stepped)
        #: when the namespace's files were last written, by the clock of that time
        self.written_ms = written_ms
        self.call_soon = call_soon
        self.timers = Timers()
        self.disk = DiskWatch(reserve_bytes)
        self.stores = {
            name: MessageStore(name, open_store, make_writer, self.disk, self.clock.offsets)
            for name in store_names
        }
        self.turns = Turns(self)
        self.works = Works(self)
        self.producers = Producers(self)
        self.forwarding = Forwarding(self)
        self.claims = Claims(self)
        self.namespace = Namespace(self, open_store, make_writer, quotas or Quotas())
        owners: list[Namespace | MessageStore] = [self.namespace, *self.stores.values()]
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
        self.seats: dict[int, Seat] = {}
        self._awake: set[Entity] = set()
        #: what is to be deleted at the end of this turn (broker/deleting.py)
        self.deletions: dict[Entity, list[Deletion]] = {}
        self.closed = False

    # Opening and closing

    def open(self) -> None:
        """Open all stores; a message store that fails stays offline, unless it is in use."""
        try:
            self.namespace.open()
            found = [(store, self._read(store)) for store in self.stores.values()]
            errors = [error for _, error in found if error is not None]
            if len(errors) == len(self.stores) or any(isinstance(e, AlreadyOpen) for e in errors):
                raise max(errors, key=lambda error: isinstance(error, AlreadyOpen))
            # Bus time continues from the latest that any store has seen, so nothing starts before.
            for store, error in found:
                if error is None:
                    self._start(store)
            keep_time(self)
        except BaseException:
            self.close()
            raise

    def _read(self, store: MessageStore) -> BaseException | None:
        """Open a store and read its partitions; return why it stays offline, or None."""
        try:
            store.open(
                self.namespace.secret,
                before=lambda: apply_inbox(self, store),
                after=lambda loop, partitions: self._after_commit(store, loop, partitions),
                failed=partial(self.went_down, store.name),
                identity=self.namespace.store_identity(store.name),
            )
        except (Failed, Refused) as error:
            self._alarm(store, error)
            return error
        self.alarms.opened(f"store {store.name}", store.notice)
        self.probing.proven(store.name)
        self.namespace.know_store(store.name, store.identity)
        for seat in store.seats.values():
            self.clock.not_before(seat.online().seen)
        return None

    def _start(self, store: MessageStore) -> None:
        """Serve the partitions of a store that was read."""
        for seat in store.seats.values():
            self.take_up(seat)
        self.works.store_opened(store, store.staged)
        for entity in dict.fromkeys(seat.entity for seat in store.seats.values()):
            self.wake_all(entity)
        self.flush_later(store)
        self.timers.set(("orphans", store.name), self.clock.now() + ORPHANS_AFTER_MS)

    def take_up(self, seat: Seat) -> None:
        """Serve a partition that is online."""
        # Being down is not being idle, and who only waited left no trace on the disk.
        for entity in (seat.entity, *seat.entity.outlets()):
            entity.last_used = self.clock.now()
        self.seats[seat.id] = seat
        self.watch(seat)
        self.timers.set(("tidy", seat.id), self.clock.now() + TIDY_AFTER_MS)
        self.claims.take_up(seat)

    def close(self) -> None:
        """Let everything go; the caller has flushed before, if it was to be kept."""
        self.closed = True
        for entity in self.namespace.entities.values():
            entity.send_away(BusClosed("the bus is closed"))
        for store in self.stores.values():
            store.stop()
        self.namespace.stop()

    def idle(self) -> bool:
        """Tell whether nothing is on its way to a disk, nor waits to be."""
        loops = [store.loop for store in self.stores.values() if store.loop is not None]
        waiting = any(loop.busy or loop.waiting for loop in loops)
        sending = any(one.inbox or one.threads.leaving for one in self.stores.values())
        owed = self.namespace.deciding or self.claims.under_way or bool(self.deletions)
        owed |= self.probing.under_way or self.turns.waiting or self.works.publishing
        return not (waiting or sending or owed)

    def flush(self) -> None:
        """Start committing everything that waits, asked for or not."""
        for store in self.stores.values():
            if store.loop is not None:
                store.loop.start(lazily=True)

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

    def seat(self, seat_id: int) -> Seat | None:
        """Return where a partition sits, online or not; None where its entity is gone."""
        for store in self.stores.values():
            if seat_id in store.seats:
                return store.seats[seat_id]
        return None

    def apply(
        self,
        seat: Seat,
        operation: Callable[[Partition, int, WriteBatch], T],
        now: int | None = None,
    ) -> T:
        """Run a command of the core on a partition that is up to its time.

        With `now` the caller has brought it there, and found things that must still be so. The
        records ride in the store's next commit. A refusal has changed nothing. Anything else that
        goes wrong leaves the partition's memory in doubt: it is thrown away. The partition knows
        whether it changed, whatever the operation returns; if it did not, nothing is written.
        """
        if now is None:
            now = self.clock.now()
            self.advance(seat, now)
        partition = seat.online()
        out = WriteBatch()
        try:
            result = operation(partition, now, out)
        except Exception as error:
            if isinstance(error, Refused) and not out and not partition.dirty:
                raise
            raise self.partition_failed(seat, error) from error
        seat.entity.last_used = now
        if out or partition.dirty:
            partition.finish(now, out)
            self._write(seat, partition, out, now)
        return result

    def use(
        self,
        entity: Entity,
        seat: Seat,
        operation: Callable[[Subscription, int, WriteBatch], T],
        now: int | None = None,
    ) -> T:
        """Run a command on what an entity has in a partition; see `apply`."""
        result = self.apply(
            seat,
            lambda partition, now, out: operation(entity.part_of(partition), now, out),
            now,
        )
        entity.last_used = seat.entity.last_used
        return result

    def look(
        self,
        entity: Entity,
        seat: Seat,
        question: Callable[Concatenate[Subscription, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """Ask what an entity has in a partition, up to its time, something; nothing changes."""
        self.advance(seat, self.clock.now())
        return self.ask(
            seat, lambda partition: question(entity.part_of(partition), *arguments, **named)
        )

    def ask(
        self,
        seat: Seat,
        question: Callable[Concatenate[Partition, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """Ask a partition something that changes nothing."""
        partition = seat.online()
        try:
            return question(partition, *arguments, **named)
        except Refused:
            raise
        except Exception as error:
            raise self.partition_failed(seat, error) from error

    def advance(self, seat: Seat, now: int) -> None:
        """Bring a partition up to that bus time."""
        partition = seat.online()
        if partition.next_wake() > now:
            return
        out = WriteBatch()
        try:
            pass_time(partition, now, self.clock.wall_at(now), out)
        except Exception as error:
            raise self.partition_failed(seat, error) from error
        self._write(seat, partition, out, now)

    def _write(self, seat: Seat, partition: Partition, out: WriteBatch, now: int) -> None:
        assert seat.store.loop is not None
        seat.store.loop.write(out)
        self.written(seat, partition, now)

    def written(self, seat: Seat, partition: Partition, now: int) -> None:
        """A partition has changed: its records are in what its store gathers."""
        assert seat.store.loop is not None
        seat.store.loop.touch(partition)
        timers, seat_id = self.timers, seat.id
        timers.set(("partition", seat_id), partition.next_wake())
        if not timers.is_set(("flush", seat.store.name)):
            timers.set(("flush", seat.store.name), now + FLUSH_MS)
        if not timers.is_set(("tidy", seat_id)):
            timers.set(("tidy", seat_id), now + TIDY_AFTER_MS)
        self.wake_all(seat.entity)

    def tidy_soon(self, seat: Seat) -> None:
        """Something that was kept in a partition may go."""
        if not self.timers.is_set(("tidy", seat.id)):
            self.timers.set(("tidy", seat.id), self.clock.now() + TIDY_AFTER_MS)

    def wake_all(self, entity: Entity) -> None:
        """Messages may have become available in a partition of a queue or a topic."""
        for outlet in entity.outlets():
            if outlet.waiters:
                self.wake(outlet)
            if outlet.forwards:
                self.forwarding.wake(outlet)

    def watch(self, seat: Seat) -> None:
        """Come back to a partition when something in it is due."""
        self.timers.set(("partition", seat.id), seat.online().next_wake())

    def flush_later(self, store: MessageStore) -> None:
        """See to it that what gathers is committed soon, also where nobody waits for it."""
        if not self.timers.is_set(("flush", store.name)):
            self.timers.set(("flush", store.name), self.clock.now() + FLUSH_MS)

    def start(self, store: MessageStore) -> None:
        """Start a commit as soon as what is running now has ended."""
        if store.loop is not None and not store.loop.busy:
            self.call_soon(lambda: store.loop.start() if store.loop is not None else None)

    def wake(self, entity: Entity) -> None:
        """Messages may have become available: serve those who wait for them."""
        if entity.waiters and entity not in self._awake:
            self._awake.add(entity)
            self.call_soon(lambda: self._serve(entity))

    def _serve(self, entity: Entity) -> None:
        self._awake.discard(entity)
        serve(self, entity)

    # Things that go wrong

    def partition_failed(self, seat: Seat, error: BaseException) -> PartitionOffline:
        """Take one partition offline: its stored bytes, or our own code, cannot be trusted."""
        return partition_failed(self, seat, error)

    def store_failed(self, store: MessageStore, error: BaseException) -> None:
        """A store failed: its memory goes, and what was not applied goes elsewhere."""
        self._alarm(store, error)
        store.take_offline(f"store {store.name} failed: {error}")
        waiting, store.inbox = store.inbox, []
        for request in waiting:
            move_elsewhere(self, request)

    def _alarm(self, store: MessageStore, error: BaseException) -> None:
        store.error = error
        self.alarms.raise_one(f"store {store.name}", error)
        for seat in store.seats.values():
            seat.offline = str(error)
        if not isinstance(error, Damaged):
            self.timers.set(("reopen", store.name), self.clock.now() + REOPEN_MS)

    def reopen(self, store: MessageStore) -> bool:
        """Open a store that failed; tell whether it is up again."""
        store.take_offline("its store is opening")
        if store.threads.leaving:
            # A commit is still under way in its files. Time may pass until a disk answers.
            store.threads.when_left(lambda: self._open_anew(store))
            return False
        if self._read(store) is not None:
            return False
        self._start(store)
        return True

    def _open_anew(self, store: MessageStore) -> None:
        if not self.closed and not isinstance(store.error, Damaged):
            self.reopen(store)

    # Time

    def _clock_stepped(self) -> None:
        """Come back to every partition in time: its scheduled messages follow the wall clock."""
        for seat in self.seats.values():
            if seat.partition is not None:
                self.watch(seat)

    def next_wake(self) -> int:
        """Return the bus time at which `tick` has something to do."""
        return self.timers.next_due()

    def tick(self) -> None:
        """Do what is due now; what comes due meanwhile waits until others have had their turn."""
        now = self.clock.now()
        while not self.closed and (key := self.timers.pop(now)) is not None:
            ring(self, *key)

    def is_behind(self) -> bool:
        """Tell whether a slice left something that is due to the next moment."""
        soon = self.clock.now() + 1
        online = [seat.partition for seat in self.seats.values() if seat.partition is not None]
        return any(partition.next_wake() <= soon for partition in online)

    def tidy(self, seat: Seat, eager: bool = True) -> bool:
        """Do a slice of compaction and of sealing ids; return whether more is waiting."""
        return tidy(self, seat, eager)

    def went_down(self, name: str, loop: CommitLoop, error: BaseException) -> None:
        """A store failed at work, unless it has been opened anew since that began."""
        if name == NAME:
            self.namespace.failed(loop, error)
        elif self.stores[name].loop is loop:
            self.store_failed(self.stores[name], error)
        elif isinstance(error, Damaged) and not self.stores[name].online:
            # It was taken offline while its pages were read again: now it is known to be damaged.
            self._alarm(self.stores[name], error)
            self.timers.cancel(("reopen", name))

    def committed(self, name: str, loop: CommitLoop) -> None:
        """A store has committed: its disk answers, and its housekeeping may be due."""
        self.probing.proven(name)
        self.houses[name].committed(loop)

    def _after_commit(
        self, store: MessageStore, loop: CommitLoop, partitions: Iterable[Partition]
    ) -> None:
        """A commit has been answered: receivers may look again, and the next one may start."""
        if store.loop is not loop:
            return
        for partition in partitions:
            seat = self.seats.get(partition.id)
            if seat is not None:
                self.wake_all(seat.entity)
        self.committed(store.name, loop)
        if store.inbox or loop.waiting:
            self.start(store)

    def forget(self, entity: Entity) -> None:
        """An entity is gone: drop its seats and tell those who wait."""
        self.timers.cancel(("idle", entity.incarnation))
        for name in entity.readers:
            self.timers.cancel(("reader", (entity.incarnation, name)))
        self.claims.forget(entity)
        self.past.add(entity.tally)
        if entity.topic is not None:
            entity.leave_topic()
            return
        for seat in entity.seats:
            seat.store.seats.pop(seat.id, None)
            seat.store.failed.discard(seat.id)
            seat.store.reads_failed.pop(seat.id, None)
            self.seats.pop(seat.id, None)
            seat.deleted = True
            for kind in ("partition", "tidy", "retidy", "reread"):
                self.timers.cancel((kind, seat.id))

    def install(self, entity: Entity) -> None:
        """An entity is there: give its partitions their seats; a subscription sits in its topic."""
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
            seat = Seat(entity, index, self.stores[name])
            entity.seats.append(seat)
            seat.store.seats[seat.id] = seat
        watch_idle(self, entity)
