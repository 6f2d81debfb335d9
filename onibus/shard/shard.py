"""A shard: one store, the partitions in it, and its commits.

A command takes this way:

    apply     the partition changes in memory; its records join the gathering batch
    commit    the batch becomes durable, on the store's writer thread (shard/commits.py)
    reply     callers whose changes are durable get their responses

Commands apply on arrival, even during a commit. Only sends wait, to share a block: `take_in`
applies those that gathered, right before a commit starts, and before every command that must not
overtake them. A store that fails takes its partitions offline and nothing else; it is opened again
after a pause (shard/opening.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from onibus.core.commands import Command, Query, Send
from onibus.core.errors import (
    EntityNotFound,
    Failed,
    OnibusError,
    PartitionOffline,
    Refused,
    StoreFailed,
)
from onibus.core.pages import Pages
from onibus.core.partition import Partition
from onibus.core.path.admit import Prepared
from onibus.core.path.expire import pass_time
from onibus.core.records import WriteBatch
from onibus.core.returns import Returns
from onibus.core.tally import Durations
from onibus.core.timers import Timers
from onibus.shard.alarms import Alarms
from onibus.shard.clock import BusClock
from onibus.shard.commits import CommitLoop
from onibus.shard.disk_room import DiskWatch
from onibus.shard.failing import partition_failed
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import Reply, answer, fail
from onibus.shard.threads import StoreThreads
from onibus.shard.writer import Done, Writer
from onibus.store.interface import OpenStore, Store

if TYPE_CHECKING:
    from onibus.core.path.admit_arrow import PreparedBatch
    from onibus.core.path.plan import Plan

T = TypeVar("T")
#: Partition → work → pieces that were staged.
Staged = dict[int, dict[int, list[int]]]

#: Records without a waiting caller (locks) are durable after this time at the latest.
FLUSH_MS = 50
#: How long a partition rests before its log and its recorded ids are tidied.
TIDY_AFTER_MS = 1_000


class Host(Protocol):
    """What a shard needs of the process that runs it."""

    clock: BusClock
    timers: Timers
    disk: DiskWatch
    alarms: Alarms
    call_soon: Callable[[Callable[[], None]], object]
    #: whether the event loop may commit for a lone request (shard/commits.py)
    inline_commits: bool

    def changed(self, partition: ShardPartition) -> None:
        """Note that messages of a partition may have become available."""

    def committed(self, shard: Shard, loop: CommitLoop) -> None:
        """Note that a store has committed, so its disk responds."""

    def went_down(self, name: str, loop: CommitLoop, error: BaseException) -> None:
        """Handle a store that failed at work."""

    def new_partition(self, partition: ShardPartition, pages: Pages, boot: int) -> Partition:
        """Return an empty partition with the settings and subscriptions of its entity."""

    def positions(self, partition: ShardPartition) -> Any:
        """Return how far each named reader is in a partition."""

    def reroute(self, request: SendRequest, error: OnibusError) -> None:
        """Fail a send that was not tried here, or pass it to another partition (P5)."""


class SendRequest(msgspec.Struct, eq=False):
    """Messages for one partition that wait to be applied with the next commit."""

    partition: ShardPartition
    prepared: list[Prepared] | PreparedBatch
    reply: Any
    keyless: bool
    size: int
    #: its fan-out, if that was computed before
    plan: Plan | None = None


class Shard:
    """A store's name, the partitions in it, and its commit loop while it is open."""

    def __init__(
        self, name: str, host: Host, open_store: OpenStore, make_writer: Callable[[str], Writer]
    ) -> None:
        self.name = name
        self.open_store = open_store
        self.threads = StoreThreads(name, make_writer)
        self.host = host
        #: None while the store is not open
        self.loop: CommitLoop | None = None
        self.partitions: dict[int, ShardPartition] = {}
        #: ids of partitions that failed while the store is open
        self.failed: set[int] = set()
        #: partitions whose reads failed lately: how often in a row, and when the last did
        self.reads_failed: dict[int, tuple[int, int]] = {}
        #: sends that wait to share a block
        self.inbox: list[SendRequest] = []
        self.error: BaseException | None = None
        #: why its disk is taken to hang (directory/probing.py); empty if it responds
        self.stalled = ""
        #: how recent deliveries of its messages ended
        self.returns = Returns()
        #: how long its commits took
        self.commit_seconds = Durations()
        #: how often the store was opened
        self.boot = 0
        #: identifies its files
        self.identity = b""
        #: an anomaly of its last opening, or empty
        self.notice = ""
        #: the store as it was opened last
        self.opened: Store | None = None
        #: the parts that were staged in it when it was opened
        self.staged: Staged = {}
        #: the multi-partition operations that it had decided when it was opened
        self.works: dict[int, bytes] = {}
        #: the latest bus time that its partitions had seen when it was opened
        self.seen = 0
        #: grows when its partitions, or their settings and subscriptions, change
        self.shape = 0
        #: when the last of the partitions that wait to be tidied has its turn
        self.tidies_next = 0

    # Apply

    def apply(self, partition: ShardPartition, command: Command[T], now: int | None = None) -> T:
        """Carry out a command on a partition that is up to its time; return its result.

        With `now` the caller has brought the partition there, and found things that must still be
        so. The records join the next commit. After a rejection nothing has changed. After any other
        error the memory of the partition is in doubt, so it is discarded.
        """
        if now is None:
            if command.after_sends:
                self.take_in()
            now = self.host.clock.now()
            self.advance(partition, now)
        core = partition.online()
        clock, out = self.host.clock, WriteBatch()
        wall = clock.wall_at(now) if command.stamps else now + clock.offsets.wall
        try:
            result = core.apply(command, now, wall, out)
        except Refused:
            raise
        except Exception as error:
            raise self.partition_failed(partition, error) from error
        if command.is_use:
            partition.entity.last_used = now
        if out:
            self._write(partition, core, out, now, awaited=command.is_awaited)
        elif command.frees:
            self.tidy_soon(partition)
        return result

    def look(self, partition: ShardPartition, query: Query[T]) -> T:
        """Return the result of a query, without the changes that are due by now."""
        return self.apply(partition, query, self.host.clock.now())

    def check(self, partition: ShardPartition, command: Command[Any]) -> None:
        """Raise the rejection of a command that would be rejected at this moment."""
        core = partition.online()
        try:
            core.check(command)
        except Refused:
            raise
        except Exception as error:
            raise self.partition_failed(partition, error) from error

    def apply_together(
        self,
        commands: Mapping[ShardPartition, Command[T]],
        now: int,
        records: WriteBatch | None = None,
    ) -> dict[ShardPartition, T]:
        """Carry out commands on several partitions in one commit; return their results.

        The commit has these records too. The caller has brought the partitions to `now`, and knows
        that no command is rejected.
        """
        wall, out = self.host.clock.wall_at(now), records or WriteBatch()
        results: dict[ShardPartition, T] = {}
        loop = self.loop
        assert loop is not None
        try:
            for partition, command in commands.items():
                results[partition] = partition.online().apply(command, now, wall, out)
        except Exception as error:
            # Some partitions have changed in memory and some have not: drop all of it.
            loop.abandon(error)
            self.host.went_down(self.name, loop, error)
            raise PartitionOffline(f"store {self.name}: {error}") from error
        loop.write(out)
        for partition in commands:
            self._written(partition, partition.online(), now, awaited=True)
            partition.entity.last_used = now
        return results

    def advance(self, partition: ShardPartition, now: int) -> None:
        """Bring a partition up to that bus time."""
        core = partition.online()
        if core.next_wake() > now:
            return
        out = WriteBatch()
        try:
            pass_time(core, now, self.host.clock.wall_at(now), out)
        except Exception as error:
            raise self.partition_failed(partition, error) from error
        self._write(partition, core, out, now)

    def _write(
        self,
        partition: ShardPartition,
        core: Partition,
        out: WriteBatch,
        now: int,
        *,
        awaited: bool = False,
    ) -> None:
        assert self.loop is not None
        self.loop.write(out)
        self._written(partition, core, now, awaited)

    def write(self, records: WriteBatch, core: Partition | None = None) -> None:
        """Commit records soon for which no client waits; a store that is down forgets them."""
        if self.loop is None:
            return
        if core is not None:
            self.loop.touch(core)
        self.loop.write(records)
        self.flush_later()

    def _written(self, partition: ShardPartition, core: Partition, now: int, awaited: bool) -> None:
        """Note that a partition has changed, and its records are in the gathering batch."""
        assert self.loop is not None
        self.loop.touch(core)
        timers, partition_id = self.host.timers, partition.id
        timers.set(("partition", partition_id), core.next_wake())
        if not awaited and not timers.is_set(("flush", self.name)):
            timers.set(("flush", self.name), now + FLUSH_MS)
        if not timers.is_set(("tidy", partition_id)):
            timers.set(("tidy", partition_id), now + TIDY_AFTER_MS)
        self.host.changed(partition)

    def watch(self, partition: ShardPartition) -> None:
        """Come back to a partition when something in it is due."""
        if partition.core is not None:
            self.host.timers.set(("partition", partition.id), partition.core.next_wake())

    def is_due(self, partition: ShardPartition, now: int) -> bool:
        """Return whether time brings a change to a partition."""
        return partition.core is not None and partition.core.next_wake() <= now

    def tidy_soon(self, partition: ShardPartition) -> None:
        """Schedule a cleanup of a partition that may have rows to delete."""
        if not self.host.timers.is_set(("tidy", partition.id)):
            self.host.timers.set(("tidy", partition.id), self.host.clock.now() + TIDY_AFTER_MS)

    # Partitions come and go

    def add(self, partition: ShardPartition) -> None:
        """Have a partition of an entity; it is online once the store is, or `begin` was called."""
        self.partitions[partition.id] = partition
        self.shape += 1

    def begin(self, partition: ShardPartition) -> bool:
        """Take a partition of a new entity online; return False if the store is down."""
        if self.loop is None:
            partition.take_offline(f"store {self.name} is down")
            return False
        partition.take(self.host.new_partition(partition, self.loop.pages, self.boot))
        return True

    def drop(self, partition: ShardPartition) -> None:
        """Drop a partition of a deleted entity."""
        self.shape += 1
        self.partitions.pop(partition.id, None)
        self.failed.discard(partition.id)
        self.reads_failed.pop(partition.id, None)
        partition.deleted = True
        for kind in ("partition", "tidy", "retidy", "reread"):
            self.host.timers.cancel((kind, partition.id))

    def partition_failed(self, partition: ShardPartition, error: BaseException) -> PartitionOffline:
        """Take a partition offline whose memory or stored bytes are in doubt."""
        return partition_failed(self, self.host, partition, error)

    # Sends gather

    def gather(self, request: SendRequest) -> None:
        """Let a send wait for the next commit, to share a block with others."""
        request.partition.pending_bytes += request.size
        self.inbox.append(request)
        if len(self.inbox) == 1:
            self.commit_soon()

    def take_in(self) -> None:
        """Apply the sends that gathered, as one batch per partition."""
        if not self.inbox or self.loop is None:
            return
        requests, self.inbox = self.inbox, []
        for request in requests:
            request.partition.pending_bytes -= request.size
        by_partition: dict[ShardPartition, list[SendRequest]] = {}
        for request in self._with_room(requests):
            group = by_partition.get(request.partition)
            if group is None:
                by_partition[request.partition] = [request]
            else:
                group.append(request)
        now = self.host.clock.now()
        for partition, group in by_partition.items():
            for some in _together(group):
                self._send(partition, some, now)

    def _with_room(self, requests: list[SendRequest]) -> list[SendRequest]:
        """Return the requests that the disk has room for; reroute the others."""
        try:
            self.check_disk(sum([request.size for request in requests]))
        except OnibusError:
            pass
        else:
            return requests
        size = 0
        fitting = []
        for request in requests:
            # A large request that does not fit does not keep the others out.
            try:
                if self.loop is None:
                    raise PartitionOffline(f"store {self.name} failed")
                self.check_disk(size + request.size)
            except OnibusError as error:
                self.host.reroute(request, error)
            else:
                fitting.append(request)
                size += request.size
        if self.loop is not None:
            return fitting
        for request in fitting:
            self.host.reroute(request, PartitionOffline(f"store {self.name} failed"))
        return []

    def _send(self, partition: ShardPartition, group: list[SendRequest], now: int) -> None:
        """Apply sends to their partition, as one batch."""
        batch = group[0].prepared
        if len(group) > 1:
            batches: list[Any] = [request.prepared for request in group]
            batch = list(chain.from_iterable(batches))
        try:
            if partition.id not in self.partitions:
                raise EntityNotFound(f"{partition.entity.name} was deleted")
            self.advance(partition, now)
        except OnibusError as error:
            for request in group:
                self.host.reroute(request, error)
            return
        try:
            answers: Any = self.apply(partition, Send(batch, group[0].plan), now)
        except OnibusError as error:
            # A bug would show again in another partition. One whose disk cannot be read does not.
            unreadable = isinstance(error.__cause__, Failed)
            for request in group:
                if unreadable:
                    self.host.reroute(request, error)
                else:
                    fail(request.reply, error)
            return
        loop = self.loop
        assert loop is not None
        if len(group) == 1:
            loop.answer_after(group[0].reply, answers)
            return
        start = 0
        for request in group:
            end = start + len(request.prepared)
            loop.answer_after(request.reply, answers[start:end])
            start = end

    def turn_away(self, error: OnibusError) -> None:
        """Reroute the sends that gathered: they will not be tried here."""
        requests, self.inbox = self.inbox, []
        for request in requests:
            request.partition.pending_bytes -= request.size
            self.host.reroute(request, error)

    # Commit and reply

    def ask(self, partition: ShardPartition, command: Command[Any], reply: Reply) -> None:
        """Carry out a command; the reply gets its result, when it is durable if it must be."""
        result = self.apply(partition, command)
        if command.answered_early:
            answer(reply, result)
        else:
            self.answer_after(reply, result)

    def answer_after(self, reply: Reply, value: Any = None) -> None:
        """Reply when everything applied so far is durable."""
        assert self.loop is not None
        self.loop.answer_after(reply, value)
        self.commit_soon()

    def commit_soon(self) -> None:
        """Start a commit at the next turn of the event loop, unless one runs."""
        if self.loop is not None and not self.loop.busy:
            self.host.call_soon(self._commit)

    def _commit(self) -> None:
        if self.loop is not None:
            self.loop.start()

    def commit_all(self) -> None:
        """Start a commit of everything that gathered, even if no caller waits for it."""
        if self.loop is not None:
            self.loop.start(lazily=True)

    def flush(self) -> None:
        """Start a commit of everything that gathered; come back for what gathers after it."""
        self.commit_all()
        if self.loop is not None and self.loop.waiting:
            self.flush_later()

    def flush_later(self) -> None:
        """Commit soon, even if no caller waits for it."""
        if not self.host.timers.is_set(("flush", self.name)):
            self.host.timers.set(("flush", self.name), self.host.clock.now() + FLUSH_MS)

    def committed(self, loop: CommitLoop, partitions: Iterable[Partition]) -> None:
        """End a store commit: receivers may find its messages, and the next one may start."""
        if self.loop is not loop:
            return
        for core in partitions:
            partition = self.partitions.get(core.id)
            if partition is not None:
                self.host.changed(partition)
        self.host.committed(self, loop)
        if self.inbox or loop.waiting:
            self.commit_soon()

    # Whether it can be used

    @property
    def online(self) -> bool:
        return self.loop is not None

    @property
    def healthy(self) -> bool:
        """Return whether the store is open and its disk responds."""
        return self.loop is not None and not self.stalled

    def check_healthy(self) -> None:
        """Reject if the store is down, or its disk does not respond."""
        if not self.healthy:
            raise PartitionOffline(self.stalled or f"store {self.name} is down: {self.error}")

    def check_disk(self, size: int, *, routing: bool = False, settling: bool = False) -> None:
        """Reject messages of that size if the disk is nearly full, or is gone."""
        loop = self.loop
        if loop is None:
            return
        # Asking a disk that hangs for its free space would not return either.
        self.check_healthy()
        try:
            self.host.disk.check(loop.store, size, routing=routing, settling=settling)
        except StoreFailed as error:
            # A disk that does not even report its free space stores nothing.
            loop.abandon(error)
            self.host.went_down(self.name, loop, error)
            raise PartitionOffline(f"store {self.name} failed: {error}") from error

    def take_offline(self, reason: str) -> None:
        """Discard the memory of the partitions, and close the store."""
        for partition in self.partitions.values():
            partition.take_offline(reason)
        self.failed.clear()
        loop, self.loop = self.loop, None
        if loop is not None:
            self.threads.let_go(loop.store)

    def read_beside(self, work: Callable[[Store], None], done: Done) -> None:
        """Read in the store on a separate thread, while commits run."""
        assert self.loop is not None
        self.threads.read(partial(work, self.loop.store), done)

    def stop(self) -> None:
        """End the threads and close the store."""
        self.threads.stop()
        if self.loop is not None:
            self.loop.store.close()
            self.loop = None


def _together(group: list[SendRequest]) -> Iterator[list[SendRequest]]:
    """Yield requests that become one batch: single ones in a row; a bulk or planned send alone."""
    start = 0
    for at, request in enumerate(group):
        if type(request.prepared) is not list or request.plan is not None:
            if start < at:
                yield group[start:at]
            yield [request]
            start = at + 1
    if start < len(group):
        yield group[start:] if start else group
