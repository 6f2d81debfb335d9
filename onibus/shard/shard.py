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

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from onibus.core.commands import Command, Send
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
from onibus.shard.clock import BusClock
from onibus.shard.commits import CommitLoop
from onibus.shard.disk_room import DiskWatch
from onibus.shard.replies import Reply, answer, fail
from onibus.shard.seat import Seat
from onibus.shard.threads import StoreThreads
from onibus.shard.writer import Done, Work, Writer
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
    call_soon: Callable[[Callable[[], None]], object]
    #: whether the event loop may commit for a lone request (shard/commits.py)
    inline_commits: bool

    def changed(self, seat: Seat) -> None:
        """Note that messages of a partition may have become available."""

    def committed(self, shard: Shard, loop: CommitLoop) -> None:
        """Note that a store has committed, so its disk responds."""

    def partition_failed(self, seat: Seat, error: BaseException) -> PartitionOffline:
        """Take a partition offline whose memory or stored bytes are in doubt."""

    def went_down(self, name: str, loop: CommitLoop, error: BaseException) -> None:
        """Handle a store that failed at work."""

    def new_partition(self, seat: Seat, pages: Pages, boot: int) -> Partition:
        """Return an empty partition with the settings and subscriptions of its entity."""

    def positions(self, seat: Seat) -> Any:
        """Return how far each named reader is in a partition."""

    def reroute(self, request: SendRequest, error: OnibusError) -> None:
        """Fail a send that was not tried here, or pass it to another partition (P5)."""


class SendRequest(msgspec.Struct, eq=False):
    """Messages for one partition that wait to be applied with the next commit."""

    seat: Seat
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
        self._host = host
        #: None while the store is not open
        self.loop: CommitLoop | None = None
        self.seats: dict[int, Seat] = {}
        #: ids of partitions that failed while the store is open
        self.failed: set[int] = set()
        #: partitions whose reads failed lately: how often in a row, and when the last did
        self.reads_failed: dict[int, tuple[int, int]] = {}
        #: sends that wait to share a block
        self.inbox: list[SendRequest] = []
        self.error: BaseException | None = None
        #: why its disk is taken to hang (broker/probing.py); empty if it responds
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
        #: grows when its partitions, or their settings and subscriptions, change
        self.shape = 0

    # Apply

    def apply(self, seat: Seat, command: Command[T], now: int | None = None) -> T:
        """Carry out a command on a partition that is up to its time; return its result.

        With `now` the caller has brought the partition there, and found things that must still be
        so. The records join the next commit. After a rejection nothing has changed. After any other
        error the memory of the partition is in doubt, so it is discarded.
        """
        if now is None:
            if command.after_sends:
                self.take_in()
            now = self._host.clock.now()
            self.advance(seat, now)
        partition = seat.online()
        clock, out = self._host.clock, WriteBatch()
        wall = clock.wall_at(now) if command.stamps else now + clock.offsets.wall
        try:
            result = partition.apply(command, now, wall, out)
        except Refused:
            raise
        except Exception as error:
            raise self._host.partition_failed(seat, error) from error
        if command.is_use:
            seat.entity.last_used = now
        if out:
            self._write(seat, partition, out, now)
        return result

    def check(self, seat: Seat, command: Command[Any]) -> None:
        """Raise the rejection of a command that would be rejected at this moment."""
        partition = seat.online()
        try:
            partition.check(command)
        except Refused:
            raise
        except Exception as error:
            raise self._host.partition_failed(seat, error) from error

    def apply_together(self, commands: Mapping[Seat, Command[T]], now: int) -> dict[Seat, T]:
        """Carry out commands on several partitions in one commit; return their results.

        The caller has brought the partitions to `now`, and knows that no command is rejected.
        """
        wall, out = self._host.clock.wall_at(now), WriteBatch()
        results: dict[Seat, T] = {}
        loop = self.loop
        assert loop is not None
        try:
            for seat, command in commands.items():
                results[seat] = seat.online().apply(command, now, wall, out)
        except Exception as error:
            # Some partitions have changed in memory and some have not: drop all of it.
            loop.abandon(error)
            self._host.went_down(self.name, loop, error)
            raise PartitionOffline(f"store {self.name}: {error}") from error
        loop.write(out)
        for seat in commands:
            self.written(seat, seat.online(), now)
            seat.entity.last_used = now
        return results

    def advance(self, seat: Seat, now: int) -> None:
        """Bring a partition up to that bus time."""
        partition = seat.online()
        if partition.next_wake() > now:
            return
        out = WriteBatch()
        try:
            pass_time(partition, now, self._host.clock.wall_at(now), out)
        except Exception as error:
            raise self._host.partition_failed(seat, error) from error
        self._write(seat, partition, out, now)

    def _write(self, seat: Seat, partition: Partition, out: WriteBatch, now: int) -> None:
        assert self.loop is not None
        self.loop.write(out)
        self.written(seat, partition, now)

    def written(self, seat: Seat, partition: Partition, now: int) -> None:
        """Note that a partition has changed, and its records are in the gathering batch."""
        assert self.loop is not None
        self.loop.touch(partition)
        timers, seat_id = self._host.timers, seat.id
        timers.set(("partition", seat_id), partition.next_wake())
        if not timers.is_set(("flush", self.name)):
            timers.set(("flush", self.name), now + FLUSH_MS)
        if not timers.is_set(("tidy", seat_id)):
            timers.set(("tidy", seat_id), now + TIDY_AFTER_MS)
        self._host.changed(seat)

    # Sends gather

    def gather(self, request: SendRequest) -> None:
        """Let a send wait for the next commit, to share a block with others."""
        request.seat.pending_bytes += request.size
        self.inbox.append(request)
        if len(self.inbox) == 1:
            self.commit_soon()

    def take_in(self) -> None:
        """Apply the sends that gathered, as one batch per partition."""
        if not self.inbox or self.loop is None:
            return
        requests, self.inbox = self.inbox, []
        for request in requests:
            request.seat.pending_bytes -= request.size
        by_seat: dict[Seat, list[SendRequest]] = {}
        for request in self._with_room(requests):
            group = by_seat.get(request.seat)
            if group is None:
                by_seat[request.seat] = [request]
            else:
                group.append(request)
        now = self._host.clock.now()
        for seat, group in by_seat.items():
            for some in _together(group):
                self._send(seat, some, now)

    def _with_room(self, requests: list[SendRequest]) -> list[SendRequest]:
        """Return the requests that the disk has room for; reroute the others."""
        with contextlib.suppress(OnibusError):
            self.check_disk(sum([request.size for request in requests]))
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
                self._host.reroute(request, error)
            else:
                fitting.append(request)
                size += request.size
        if self.loop is not None:
            return fitting
        for request in fitting:
            self._host.reroute(request, PartitionOffline(f"store {self.name} failed"))
        return []

    def _send(self, seat: Seat, group: list[SendRequest], now: int) -> None:
        """Apply sends to their partition, as one batch."""
        batch = group[0].prepared
        if len(group) > 1:
            batches: list[Any] = [request.prepared for request in group]
            batch = list(chain.from_iterable(batches))
        try:
            if seat.id not in self.seats:
                raise EntityNotFound(f"{seat.entity.name} was deleted")
            self.advance(seat, now)
        except OnibusError as error:
            for request in group:
                self._host.reroute(request, error)
            return
        try:
            answers = self.apply(seat, Send(batch, group[0].plan), now)
        except OnibusError as error:
            # A bug would show again in another partition. One whose disk cannot be read does not.
            unreadable = isinstance(error.__cause__, Failed)
            for request in group:
                if unreadable:
                    self._host.reroute(request, error)
                else:
                    fail(request.reply, error)
            return
        assert self.loop is not None
        for request, share in zip(group, _shares(group, answers), strict=True):
            self.loop.answer_after(request.reply, share)

    def turn_away(self, error: OnibusError) -> None:
        """Reroute the sends that gathered: they will not be tried here."""
        requests, self.inbox = self.inbox, []
        for request in requests:
            request.seat.pending_bytes -= request.size
            self._host.reroute(request, error)

    # Commit and reply

    def ask(self, seat: Seat, command: Command[Any], reply: Reply) -> None:
        """Carry out a command; the reply gets its result, when it is durable if it must be."""
        result = self.apply(seat, command)
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
            self._host.call_soon(self._commit)

    def _commit(self) -> None:
        if self.loop is not None:
            self.loop.start()

    def commit_all(self) -> None:
        """Start a commit of everything that gathered, even if no caller waits for it."""
        if self.loop is not None:
            self.loop.start(lazily=True)

    def flush_later(self) -> None:
        """Commit soon, even if no caller waits for it."""
        if not self._host.timers.is_set(("flush", self.name)):
            self._host.timers.set(("flush", self.name), self._host.clock.now() + FLUSH_MS)

    def committed(self, loop: CommitLoop, partitions: Iterable[Partition]) -> None:
        """End a store commit: receivers may find its messages, and the next one may start."""
        if self.loop is not loop:
            return
        for partition in partitions:
            seat = self.seats.get(partition.id)
            if seat is not None:
                self._host.changed(seat)
        self._host.committed(self, loop)
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
            self._host.disk.check(loop.store, size, routing=routing, settling=settling)
        except StoreFailed as error:
            # A disk that does not even report its free space stores nothing.
            loop.abandon(error)
            self._host.went_down(self.name, loop, error)
            raise PartitionOffline(f"store {self.name} failed: {error}") from error

    def take_offline(self, reason: str) -> None:
        """Discard the memory of the partitions, and close the store."""
        for seat in self.seats.values():
            seat.partition = None
            seat.offline = reason
        self.failed.clear()
        loop, self.loop = self.loop, None
        if loop is not None:
            self.threads.let_go(loop.store)

    def read_beside(self, work: Work, done: Done) -> None:
        """Read in the store on a separate thread, while commits run."""
        self.threads.read(work, done)

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


def _shares(group: list[SendRequest], answers: Any) -> Iterator[Any]:
    """Yield the results of each request."""
    if len(group) == 1:
        yield answers
        return
    if len(answers) == len(group):
        for one in answers:
            yield [one]
        return
    start = 0
    for request in group:
        end = start + len(request.prepared)
        yield answers[start:end]
        start = end
