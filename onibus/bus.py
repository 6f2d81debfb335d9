"""The bus as a library: a directory opened by an asyncio program, without any server.

    async with Bus.open("data/") as bus:
        await bus.create_queue("orders", requires_duplicate_detection=True)
        await bus.send("orders", Message(body=b"…", message_id="12345.2017/payment"))
        async with bus.receiver("orders") as receiver:
            for message in await receiver.receive(wait_ms=1_000):
                await receiver.complete(message)

Everything here turns a call into a command of the broker and waits for its answer. When a call that
changes something returns, the change is on the disk.
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
from onibus.broker import receiving, sending, settling
from onibus.broker.admission import RESERVE_BYTES
from onibus.broker.broker import Broker
from onibus.broker.clock import Clock, MovableClock, SystemClock
from onibus.broker.namespace import NAME
from onibus.broker.probing import PROBE_MS
from onibus.broker.quotas import Quotas
from onibus.broker.timekeeping import accept_clock, clock_info
from onibus.broker.writer import ThreadWriter
from onibus.calls.claims import ClaimCalls
from onibus.calls.entities import EntityCalls
from onibus.calls.log import LogCalls
from onibus.calls.staging import StagingCalls
from onibus.core.block import NEVER
from onibus.core.checks import check_whole
from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.core.inspection import Filter, NonExclusive, SessionInfo
from onibus.core.message import Message, ReceivedMessage, Sent, SentBatch
from onibus.core.path.deduplicate import list_duplicates
from onibus.core.path.session import list_sessions
from onibus.receiver import FifoReceiver, Receiver, SessionReceiver
from onibus.store.files import make_directory, written_ms
from onibus.store.interface import OpenStore, Store
from onibus.store.memory import MemoryStore
from onibus.store.sqlite import SqliteStore

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_STORE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The year 2000: a moment before it is a duration that was given by mistake.
_EARLIEST_MS = 946_684_800_000

#: A wait that no sensible receive exceeds; keeps timers within what the loop takes.
_SLEEP_MS_MAX = 60_000


class Bus(EntityCalls, StagingCalls, LogCalls, ClaimCalls):
    """A namespace of queues, kept in a directory. Make it with `Bus.open`."""

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
        """Open the bus in a directory, made if it is missing. Use it with `async with` or `await`.

        `stores` names the message stores over which partitions are dealt: names, for files in the
        directory, or names with directories of their own, for several disks. Below `reserve_bytes`
        of free disk sends are refused; `quotas` bounds the number of entities. A store that has not
        committed for `probe_ms` is given a small synced write; 0 turns that off.
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
                raise InvalidArgument(f"{place} cannot be a directory: {error}") from None
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
        """Open a bus that lives in memory only: for tests."""
        return OpeningBus(
            ["main"], lambda name, _: MemoryStore(name), clock or MovableClock(), 0, quotas
        )

    async def close(self) -> None:
        """Finish what is on its way, keep locks (B8), and let the directory go."""
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
        """Store a message; when this returns it is on the disk."""
        self.check_alive()
        # No detour through `ask`: this is the call that programs make most.
        reply: asyncio.Future[list[Sent]] = self._loop.create_future()
        sending.send_one(self.broker, entity, message, reply)
        return (await reply)[0]

    async def send_batch(self, entity: str, messages: Sequence[Message]) -> list[Sent]:
        """Store messages together; answers are in their order."""
        result: list[Sent] = await self.ask(
            lambda reply: sending.send(self.broker, entity, messages, reply)
        )
        return result

    async def send_arrow(self, entity: str, batch: pa.RecordBatch | pa.Table) -> SentBatch:
        """Store the rows of a batch, whose columns are fields of Message: all of them, or none."""
        admission = await self._admit_arrow(entity, batch)
        result: SentBatch = await self.ask(admission.send)
        return result

    async def schedule(self, entity: str, message: Message, due_ms: int) -> int:
        """Store a message for a moment, in milliseconds since 1970; return the number to cancel it.

        A moment that has passed is no wait at all.
        """
        self.check_alive()
        if not isinstance(message, Message):
            raise InvalidArgument(f"a Message is scheduled, not a {type(message).__name__}")
        if type(due_ms) is not int or due_ms < _EARLIEST_MS:
            raise InvalidArgument(
                f"due_ms is {due_ms!r}: give a moment in milliseconds since 1970, such as "
                "time.time_ns() // 1_000_000 + 60_000 for in a minute"
            )
        later = replace(message, scheduled_enqueue_time_ms=due_ms)
        return (await self.send(entity, later)).sequence_number

    async def cancel_scheduled(self, entity: str, numbers: Sequence[int]) -> None:
        """Delete scheduled messages: all of them, or none."""
        await self.ask(lambda reply: settling.cancel_scheduled(self.broker, entity, numbers, reply))

    def receiver(
        self, entity: str, *, dead_letters: bool = False, delete: bool = False
    ) -> Receiver:
        """Return a receiver of a queue, or of its dead-letter queue.

        With `delete` messages are gone when they are received; otherwise they are locked until they
        are settled.
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
        """Lock a session, a named one or the next that is free, and return its receiver.

        `owner` is the name under which `sessions` lists the holder. If `exclusive` is False, a
        receiver that presents the `lock_token` of this one can take the session over (B9).
        """
        sharing = None if exclusive else NonExclusive(lock_token)
        if exclusive and lock_token is not None:
            raise InvalidArgument("a lock token takes over a non-exclusive session only")
        found, seat, accepted = await self.ask(
            lambda reply: receiving.accept(
                self.broker, entity, session_id, owner, wait_ms, reply, sharing
            )
        )
        return SessionReceiver(self, found, seat, accepted)

    def fifo_receiver(self, entity: str) -> FifoReceiver:
        """Return a receiver of a FIFO queue."""
        self.check_alive()
        self.broker.find(entity)
        return FifoReceiver(self, entity)

    # Looking and tidying

    def peek(
        self,
        entity: str,
        *,
        start: int = 0,
        limit: int = 100,
        dead_letters: bool = False,
        where: Filter | None = None,
    ) -> list[ReceivedMessage]:
        """Look at messages from a sequence number on, without touching them.

        May return fewer than asked; go on from the last number + 1 until nothing is returned. With
        a filter it looks at once through as many messages as it takes to find some; servers give
        way to others meanwhile.
        """
        return self.tell(
            lambda: settling.peek_all(
                self.broker, entity, start, limit, where or Filter(), dead_letters
            )
        )

    async def purge(
        self, entity: str, where: Filter | None = None, *, forget_ids: bool = False
    ) -> int:
        """Delete messages that nobody holds; return how many. Ids stay remembered unless told."""
        wanted = where or Filter()
        count: int = await self.ask(
            lambda reply: settling.purge_all(self.broker, entity, wanted, forget_ids, reply)
        )
        return count

    async def undefer(self, entity: str, numbers: Sequence[int]) -> None:
        """Give deferred messages back to the active ones: all of them, or none."""
        await self.ask(lambda reply: settling.undefer_all(self.broker, entity, numbers, reply))

    def duplicates(self, entity: str) -> list[tuple[str | None, int, int]]:
        """Return the last dropped duplicates: MessageId, time, and the number each repeats (X1)."""

        def listed() -> list[tuple[str | None, int, int]]:
            seats = [seat for seat in self.broker.find(entity).seats if seat.partition is not None]
            found = [one for seat in seats for one in self.broker.ask(seat, list_duplicates)]
            return sorted(found, key=lambda one: one[1])

        return self.tell(listed)

    def sessions(self, entity: str) -> list[SessionInfo]:
        """Return the sessions that have messages, a lock or a state (X8)."""

        def listed() -> list[SessionInfo]:
            found = self.broker.find(entity)
            seats = [seat for seat in found.seats if seat.partition is not None]
            return [info for seat in seats for info in self.broker.look(found, seat, list_sessions)]

        return self.tell(listed)

    @property
    def alarms(self) -> list[str]:
        """What went wrong with stores and partitions since the bus was opened."""
        return list(self.broker.alarms.kept)

    # The clock

    def clock(self) -> ClockInfo:
        """Return what the bus takes the time for, and whether the machine's clock is in doubt."""
        return self.tell(lambda: clock_info(self.broker))

    async def accept_clock(self) -> list[StampsSetBack]:
        """Take the machine's clock for right, as an operator says; return which stamps it set back.

        Time that was in doubt counts from now on: messages may expire, ids may be forgotten.
        """
        repaired: list[StampsSetBack] = await self.ask(
            lambda reply: accept_clock(self.broker, reply)
        )
        return repaired

    # For tests

    async def advance(self, ms: int) -> None:
        """Let time pass at once, and do what comes due: of a bus in memory, for tests (X10)."""
        self.check_alive()
        check_whole("ms", ms, 0)
        clock = self.broker.clock.machine
        if not isinstance(clock, MovableClock):
            raise InvalidOperation("the clock of this bus cannot be moved: open it as ephemeral")
        clock.advance(ms)
        self._tick()
        while self.broker.is_behind():
            await asyncio.sleep(0.001)
            self._tick()
        await self._flush()

    # Being there in time

    def arm(self) -> None:
        """Be there when the broker next has something to do by itself."""
        due = self.broker.next_wake()
        if due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            delay = min(max(due - self.broker.clock.now(), 0), _SLEEP_MS_MAX)
            self._timer = self._loop.call_later(delay / 1000, self._tick)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_due = NEVER
        self.broker.tick()
        if not self.broker.closed:
            self.arm()


class OpeningBus:
    """A bus that is about to be opened: `async with` it, or `await` it."""

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
        bus: Bus

        def call(done: Callable[[], None]) -> None:
            def run() -> None:
                done()
                bus.arm()

            loop.call_soon_threadsafe(run)

        broker = Broker(
            self._clock,
            self._stores,
            self._open_store,
            lambda name: ThreadWriter(name, call),
            loop.call_soon,
            self._reserve_bytes,
            self._quotas,
            self._written(),
            self._probe_ms,
        )
        bus = Bus(broker, loop)
        broker.open()
        bus.arm()
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
            f"this bus is not open yet: write `bus = await Bus.open(…)` or `async with Bus.open(…) "
            f"as bus` before using {name!r}"
        )


def _places(
    root: Path, stores: Mapping[str, str | os.PathLike[str]] | Sequence[str]
) -> dict[str, Path]:
    """Return the directory of each message store, by its name."""
    if isinstance(stores, (str, bytes)):
        raise InvalidArgument(f"stores is a list of names: write stores=[{stores!r}]")
    names = list(stores)
    if not names or len(set(names)) != len(names) or NAME in names:
        raise InvalidArgument(f"name one store or several, each once, and none of them {NAME!r}")
    for name in names:
        if not isinstance(name, str) or not _STORE_NAME.fullmatch(name):
            raise InvalidArgument(f"{name!r}: a store's name has letters, digits, - and _")
    if isinstance(stores, Mapping):
        return {name: Path(place) for name, place in stores.items()}
    return dict.fromkeys(names, root)
