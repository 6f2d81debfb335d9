"""The bus as a library: an asyncio program opens a data directory, without a server.

    async with Bus.open("data/") as bus:
        await bus.create_queue("orders", requires_duplicate_detection=True)
        await bus.send("orders", Message(body=b"…", message_id="12345.2017/payment"))
        async with bus.receiver("orders") as receiver:
            for message in await receiver.receive(wait_ms=1_000):
                await receiver.complete(message)

Each call becomes a command to the broker and waits for its response. A call that changes something
returns once the change is durable.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from msgspec.structs import replace

from onibus.api.log import StampsSetBack
from onibus.api.operation import ClockInfo
from onibus.calls.claims import ClaimCalls
from onibus.calls.entities import EntityCalls
from onibus.calls.log import LogCalls
from onibus.calls.staging import StagingCalls
from onibus.core.block import NEVER
from onibus.core.checks import check_whole
from onibus.core.commands import ListDuplicates, ListSessions
from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.core.inspection import Filter, NonExclusive, SessionInfo
from onibus.core.message import Message, ReceivedMessage, Sent, SentBatch
from onibus.directory.namespace import NAME
from onibus.directory.probing import PROBE_MS
from onibus.directory.quotas import Quotas
from onibus.directory.timekeeping import accept_clock, clock_info
from onibus.gateway import receiving, sending, settling
from onibus.gateway.broker import Broker
from onibus.receiver import FifoReceiver, Receiver, SessionReceiver
from onibus.shard.clock import Clock, MovableClock, SystemClock
from onibus.shard.disk_room import RESERVE_BYTES
from onibus.shard.writer import ThreadWriter
from onibus.store.files import make_directory, written_ms
from onibus.store.interface import OpenStore, Store
from onibus.store.memory import MemoryStore
from onibus.store.sqlite import SqliteStore

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_STORE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The year 2000: a time before it is a duration passed by mistake.
_EARLIEST_MS = 946_684_800_000

#: Longer than any sensible wait; keeps timers within the limits of the event loop.
_SLEEP_MS_MAX = 60_000


class Bus(EntityCalls, StagingCalls, LogCalls, ClaimCalls):
    """A namespace of queues in a data directory. Create it with `Bus.open`."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(broker, loop)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = NEVER

    @staticmethod
    def open(
        directory: str | os.PathLike[str],
        *,
        stores: Mapping[str, str | os.PathLike[str]] | Sequence[str] = ("main",),
        clock: Clock | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        quotas: Quotas | None = None,
        probe_ms: int = PROBE_MS,
    ) -> OpeningBus:
        """Open the bus in a directory, created if missing. Use it with `async with` or `await`.

        `stores` names the message stores that partitions are spread over: names for files in the
        directory, or names with their directories, for several disks. Sends are rejected below
        `reserve_bytes` of free disk space; `quotas` limits the number of entities. A store that has
        not committed for `probe_ms` gets a small synced write; 0 disables this.
        """
        check_whole("probe_ms", probe_ms, 0)
        root = Path(directory)
        places = _places(root, stores)

        def open_store(name: str, known: bool) -> Store:
            place = root if name == NAME else places[name]
            try:
                if not known:
                    make_directory(place)
            except OSError as error:
                raise InvalidArgument(f"cannot create directory {place}: {error}") from None
            return SqliteStore(place / f"{name}.sqlite", name, known=known)

        return OpeningBus(
            list(places),
            open_store,
            clock or SystemClock(),
            reserve_bytes,
            quotas,
            lambda: written_ms(root / f"{NAME}.sqlite"),
            probe_ms,
        )

    @staticmethod
    def ephemeral(*, clock: Clock | None = None, quotas: Quotas | None = None) -> OpeningBus:
        """Open a bus in memory, for tests."""
        return OpeningBus(
            ["main"], lambda name, _: MemoryStore(name), clock or MovableClock(), 0, quotas
        )

    async def close(self) -> None:
        """Finish operations in progress, keep locks (B8), and release the directory."""
        if self.broker.closed:
            return
        await self._flush()
        if self._timer is not None:
            self._timer.cancel()
        self.broker.close()

    async def _flush(self) -> None:
        self.broker.flush()
        while not self.broker.idle():
            await asyncio.sleep(0.001)
            self.broker.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Messages

    async def send(self, entity: str, message: Message) -> Sent:
        """Store a message; return once it is durable."""
        self.check_alive()
        # Not through `ask`: programs make this call most.
        reply: asyncio.Future[list[Sent]] = self._loop.create_future()
        sending.send_one(self.broker, entity, message, reply)
        return (await reply)[0]

    async def send_batch(self, entity: str, messages: Sequence[Message]) -> list[Sent]:
        """Store messages together; return their outcomes in order."""
        result: list[Sent] = await self.ask(
            lambda reply: sending.send(self.broker, entity, messages, reply)
        )
        return result

    async def send_arrow(self, entity: str, batch: pa.RecordBatch | pa.Table) -> SentBatch:
        """Store the rows of a batch, whose columns are fields of Message, atomically."""
        admission = await self.admit_arrow(entity, batch)
        result: SentBatch = await self.ask(admission.send)
        return result

    async def schedule(self, entity: str, message: Message, due_ms: int) -> int:
        """Schedule a message for a time in milliseconds since 1970; return the number to cancel it.

        A time in the past enqueues immediately.
        """
        self.check_alive()
        if not isinstance(message, Message):
            raise InvalidArgument(f"schedule a Message, not a {type(message).__name__}")
        if type(due_ms) is not int or due_ms < _EARLIEST_MS:
            raise InvalidArgument(
                f"due_ms is {due_ms!r}: use a time in milliseconds since 1970, such as "
                "time.time_ns() // 1_000_000 + 60_000 for one minute from now"
            )
        later = replace(message, scheduled_enqueue_time_ms=due_ms)
        return (await self.send(entity, later)).sequence_number

    async def cancel_scheduled(self, entity: str, numbers: Sequence[int]) -> None:
        """Cancel scheduled messages; if one is not found, cancel none."""
        await self.ask(lambda reply: settling.cancel_scheduled(self.broker, entity, numbers, reply))

    def receiver(
        self, entity: str, *, dead_letters: bool = False, delete: bool = False
    ) -> Receiver:
        """Return a receiver of a queue, or of its dead-letter queue.

        With `delete`, messages are deleted when they are received. Otherwise they are locked until
        they are settled.
        """
        self.check_alive()
        self.broker.find(entity)
        return Receiver(self, entity, dead_letters, delete)

    async def accept_session(
        self,
        entity: str,
        session_id: str | None = None,
        *,
        owner: str = "",
        wait_ms: int = 0,
        exclusive: bool = True,
        lock_token: bytes | None = None,
    ) -> SessionReceiver:
        """Lock a session, a named one or the next available, and return its receiver.

        `sessions` lists the holder of a session by the name `owner`. If `exclusive` is False, a
        receiver that presents the `lock_token` of this one can take the session over (B9).
        """
        sharing = None if exclusive else NonExclusive(lock_token)
        if exclusive and lock_token is not None:
            raise InvalidArgument("a lock token takes over a non-exclusive session only")
        found, partition, accepted = await self.ask(
            lambda reply: receiving.accept(
                self.broker, entity, session_id, owner, wait_ms, reply, sharing
            )
        )
        return SessionReceiver(self, found, partition, accepted)

    def fifo_receiver(self, entity: str) -> FifoReceiver:
        """Return a receiver of a FIFO queue."""
        self.check_alive()
        self.broker.find(entity)
        return FifoReceiver(self, entity)

    # Inspection and maintenance

    def peek(
        self,
        entity: str,
        *,
        start: int = 0,
        limit: int = 100,
        dead_letters: bool = False,
        where: Filter | None = None,
    ) -> list[ReceivedMessage]:
        """Return messages from a sequence number on, without locking them.

        May return fewer than `limit`; continue with the last sequence number + 1 until it returns
        none. With a filter, it examines as many messages as it takes to find some; servers let
        other requests run in between.
        """
        return self.tell(
            lambda: settling.peek_all(
                self.broker, entity, start, limit, where or Filter(), dead_letters
            )
        )

    async def purge(
        self, entity: str, where: Filter | None = None, *, forget_ids: bool = False
    ) -> int:
        """Delete unlocked messages; return how many. `forget_ids` discards their recorded ids."""
        wanted = where or Filter()
        count: int = await self.ask(
            lambda reply: settling.purge_all(self.broker, entity, wanted, forget_ids, reply)
        )
        return count

    async def undefer(self, entity: str, numbers: Sequence[int]) -> None:
        """Reactivate deferred messages; if one is not found, reactivate none."""
        await self.ask(lambda reply: settling.undefer_all(self.broker, entity, numbers, reply))

    def duplicates(self, entity: str) -> list[tuple[str | None, int, int]]:
        """Return the latest dropped duplicates: MessageId, time, and the original's number (X1)."""

        def listed() -> list[tuple[str | None, int, int]]:
            found = [
                one
                for partition in self.broker.find(entity).online_partitions()
                for one in self.broker.apply(partition, ListDuplicates())
            ]
            return sorted(found, key=lambda one: one[1])

        return self.tell(listed)

    def sessions(self, entity: str) -> list[SessionInfo]:
        """Return the sessions that have messages, a lock or a state (X8)."""

        def listed() -> list[SessionInfo]:
            found = self.broker.find(entity)
            command = ListSessions(found.number)
            return [
                info
                for partition in found.online_partitions()
                for info in self.broker.use(found, partition, command)
            ]

        return self.tell(listed)

    @property
    def alarms(self) -> list[str]:
        """Alarms of stores and partitions since the bus was opened."""
        return list(self.broker.alarms.kept)

    # The clock

    def clock(self) -> ClockInfo:
        """Return the time that the bus has confirmed, and whether the system clock is in doubt."""
        return self.tell(lambda: clock_info(self.broker))

    async def accept_clock(self) -> list[StampsSetBack]:
        """Confirm the system clock; return the partitions whose enqueued times were set back.

        From now on messages expire and recorded ids are discarded by this clock.
        """
        repaired: list[StampsSetBack] = await self.ask(
            lambda reply: accept_clock(self.broker, reply)
        )
        return repaired

    # For tests

    async def advance(self, ms: int) -> None:
        """Advance the clock and do everything due by then, in an ephemeral bus for tests (X10)."""
        self.check_alive()
        check_whole("ms", ms, 0)
        clock = self.broker.clock.machine
        if not isinstance(clock, MovableClock):
            raise InvalidOperation("cannot move the clock of this bus: open it with Bus.ephemeral")
        clock.advance(ms)
        self._tick()
        while self.broker.is_behind() or self.broker.next_wake() <= self.broker.clock.now():
            await asyncio.sleep(0.001)
            self._tick()
        await self._flush()

    # Timers

    def keep_time(self) -> None:
        """Wake up for the broker's timers from now on."""
        self.broker.timers.listen(self._arm)
        self._arm()

    def _arm(self) -> None:
        """Wake up when the broker next has timed work to do: a timer was set."""
        due = self.broker.next_wake()
        if due < self._timer_due and not self.broker.closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            delay = min(max(due - self.broker.clock.now(), 0), _SLEEP_MS_MAX)
            self._timer = self._loop.call_later(delay / 1000, self._tick)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # `_arm` at the end covers the timers that are set from here on.
        self._timer, self._timer_due = None, 0
        try:
            self.broker.tick()
        finally:
            self._timer_due = NEVER
            self._arm()


class OpeningBus:
    """A bus that is not open yet: use it with `async with` or `await`."""

    def __init__(
        self,
        stores: list[str],
        open_store: OpenStore,
        clock: Clock,
        reserve_bytes: int,
        quotas: Quotas | None = None,
        written: Callable[[], int | None] = lambda: None,
        probe_ms: int = 0,
    ) -> None:
        self._quotas = quotas
        self._written = written
        self._probe_ms = probe_ms
        self._stores = stores
        self._open_store = open_store
        self._clock = clock
        self._reserve_bytes = reserve_bytes
        self._bus: Bus | None = None

    async def _open(self) -> Bus:
        loop = asyncio.get_running_loop()
        broker = Broker(
            self._clock,
            self._stores,
            self._open_store,
            lambda name: ThreadWriter(name, loop.call_soon_threadsafe),
            loop.call_soon,
            self._reserve_bytes,
            self._quotas,
            self._written(),
            self._probe_ms,
            inline_commits=True,
        )
        bus = Bus(broker, loop)
        for works in broker.opening():
            await _on_threads(works)
        bus.keep_time()
        # Rules that a transaction changed are shown already: so are its messages.
        published = loop.create_future()
        broker.works.when_published(published)
        await published
        return bus

    def __await__(self) -> Any:
        return self._open().__await__()

    async def __aenter__(self) -> Bus:
        self._bus = await self._open()
        return self._bus

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._bus is not None
        await self._bus.close()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the bus is not open yet: write `bus = await Bus.open(…)` or `async with Bus.open(…) "
            f"as bus` before using {name!r}"
        )


async def _on_threads(works: list[Callable[[], None]]) -> None:
    """Do works on threads, while the event loop continues; a cancelled caller waits for them."""
    done = asyncio.gather(*[asyncio.to_thread(work) for work in works])
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        await done
        raise


def _places(
    root: Path, stores: Mapping[str, str | os.PathLike[str]] | Sequence[str]
) -> dict[str, Path]:
    """Return the directory of each message store, by name."""
    if isinstance(stores, (str, bytes)):
        raise InvalidArgument(f"stores must be a list of names: write stores=[{stores!r}]")
    names = list(stores)
    if not names or len(set(names)) != len(names) or NAME in names:
        raise InvalidArgument(f"name at least one store, each once, and none {NAME!r}")
    for name in names:
        if not isinstance(name, str) or not _STORE_NAME.fullmatch(name):
            raise InvalidArgument(f"invalid store name {name!r}: use letters, digits, - and _")
    if isinstance(stores, Mapping):
        return {name: Path(place) for name, place in stores.items()}
    return dict.fromkeys(names, root)
