"""One message store of the namespace: opened, read back, written to, and, when it fails, set aside.

A store that fails takes its partitions offline and nothing else. It is opened anew after a pause;
a damaged one only when somebody asks for it, since opening it again cannot mend it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from onibus.broker.admission import DiskWatch
from onibus.broker.commit_loop import CommitLoop
from onibus.broker.entity import Seat
from onibus.broker.store_threads import StoreThreads
from onibus.broker.writer import Done, Work, Writer
from onibus.core.clock_offsets import ClockOffsets
from onibus.core.errors import Damaged, PartitionOffline, StoreFailed
from onibus.core.partition import Partition
from onibus.core.path.admit import Prepared
from onibus.core.path.recover import COLUMNS, SOURCES, Rows, recover
from onibus.core.records import BLOCK_INDEX, BLOCKS, ID_CHUNKS, META, STAGED, Table, WriteBatch
from onibus.core.returns import Returns
from onibus.core.staged import blocks_of
from onibus.core.tally import Durations
from onibus.store.interface import OpenStore, Store

if TYPE_CHECKING:
    from onibus.core.path.admit_arrow import PreparedBatch
    from onibus.core.path.plan import Plan


class SendRequest(msgspec.Struct, eq=False):
    """Messages for one partition that wait to be applied with the next commit."""

    seat: Seat
    prepared: list[Prepared] | PreparedBatch
    reply: Any
    keyless: bool
    size: int
    #: its fan-out, where that was computed before
    plan: Plan | None = None


class MessageStore:
    """A store's name, how it is opened, and its commit loop while it is up."""

    def __init__(
        self,
        name: str,
        open_store: OpenStore,
        make_writer: Callable[[str], Writer],
        disk: DiskWatch,
        offsets: ClockOffsets,
    ) -> None:
        self.name = name
        self._open_store = open_store
        self.threads = StoreThreads(name, make_writer)
        self._disk = disk
        #: how far the wall clock is from bus time
        self.offsets = offsets
        #: how deliveries of its messages ended
        self.returns = Returns()
        self.loop: CommitLoop | None = None
        #: told when the store turns out to be down
        self._failed: Callable[[CommitLoop, BaseException], None]
        self.seats: dict[int, Seat] = {}
        #: ids of partitions that failed while the store is up
        self.failed: set[int] = set()
        #: partitions whose reads failed lately: how often in a row, and when the last did
        self.reads_failed: dict[int, tuple[int, int]] = {}
        self.inbox: list[SendRequest] = []
        self.error: BaseException | None = None
        #: why its disk is taken to hang (probing.py); empty if it answers
        self.stalled = ""
        #: how long its commits took
        self.commit_seconds = Durations()
        #: how often the store was opened
        self.boot = 0
        #: what tells its files from those of any other store
        self.identity = b""
        #: an anomaly of its last opening, or empty
        self.notice = ""
        #: the store as it was opened last
        self._opened: Store | None = None
        #: what was staged in it when it was opened: partition → work → pieces
        self.staged: dict[int, dict[int, list[int]]] = {}

    @property
    def online(self) -> bool:
        return self.loop is not None

    @property
    def healthy(self) -> bool:
        """The store is open, and its disk answers."""
        return self.loop is not None and not self.stalled

    def check_healthy(self) -> None:
        """Refuse if the store is down, or its disk does not answer."""
        if not self.healthy:
            raise PartitionOffline(self.stalled or f"store {self.name} is down: {self.error}")

    def open(
        self,
        secret: bytes,
        *,
        before: Callable[[], None],
        after: Callable[[CommitLoop, Iterable[Partition]], None],
        failed: Callable[[CommitLoop, BaseException], None],
        identity: bytes | None,
    ) -> None:
        """Open the store, known by that identity if it was there before, and read it back."""
        self._failed = failed
        store = self._opened = open_known(self._open_store, self.name, identity, self._opened)
        self.identity, self.notice = store.identity, store.notice
        # Recovery makes many objects and no garbage: looking for some would double its time.
        collecting = gc.isenabled()
        gc.disable()
        try:
            loop = CommitLoop(store, self.threads.write, before=before, after=after, failed=failed)
            loop.seconds = self.commit_seconds
            self._disk.watch(loop)
            self.boot = self._count_boot(store)
            rows, orphans = self._read(store)
            self.staged = self._read_staged(store, orphans)
            if identity is None and orphans:
                raise Damaged(
                    f"store {self.name} has messages, but is not in the namespace: the data "
                    "directory may not be mounted, or is the wrong one. Nothing was changed; name "
                    "the directory that belongs to this store"
                )
            records = WriteBatch()
            self.failed.clear()
            for seat in self.seats.values():
                partition = seat.new_partition(loop.pages, secret)
                orphans += recover(partition, rows.get(seat.id, {}))
                seat.partition = partition
                seat.pending_bytes = 0
            for table, key in orphans:
                records.delete(table, key)
                if table is BLOCK_INDEX:
                    records.delete(BLOCKS, key)
            loop.write(records)
        except BaseException:
            self.take_offline("cannot read its store")
            store.close()
            raise
        finally:
            if collecting:
                gc.enable()
        self.loop = loop
        self.error = None

    def _count_boot(self, store: Store) -> int:
        """Count this opening; tokens made before a crash never match those made after (B8)."""
        row = store.read(META, ("boot",))
        boot = (row[1] if row is not None and isinstance(row[1], int) else 0) + 1
        batch = WriteBatch()
        batch.put(META, ("boot", boot))
        store.commit(batch)
        return boot

    def _read(self, store: Store) -> tuple[dict[int, Rows], list[tuple[Table, Any]]]:
        """Return the rows of each partition that has a seat here, and the keys of all others.

        Others are what is left of deleted entities.
        """
        rows: dict[int, Rows] = {seat: {} for seat in self.seats}
        orphans: list[tuple[Table, Any]] = []
        for table, column in SOURCES.items():
            found: dict[Any, list[Any]] = {}
            scanned = store.scan(table, COLUMNS.get(table, ()))
            for partition, group in groupby(scanned, itemgetter(column)):
                found.setdefault(partition, []).extend(group)
            for partition, bucket in found.items():
                if partition in rows:
                    rows[partition][table] = bucket
                else:
                    orphans += [(table, row[: table.key]) for row in bucket]
        return rows, orphans

    def _read_staged(
        self, store: Store, orphans: list[tuple[Table, Any]]
    ) -> dict[int, dict[int, list[int]]]:
        """Return what is staged for partitions that have a seat here; others have lost theirs."""
        staged: dict[int, dict[int, list[int]]] = {}
        rows: Any = store.scan(STAGED, ("work", "partition", "piece"))
        for work, partition, piece in rows:
            if partition in self.seats:
                staged.setdefault(partition, {}).setdefault(work, []).append(piece)
            else:
                row: Any = store.read(STAGED, (work, partition, piece))
                orphans.append((STAGED, row[: STAGED.key]))
                orphans += [(BLOCKS, (block,)) for block in blocks_of(row[-1])]
        return staged

    def find_orphans(self) -> None:
        """Look for chunks of remembered ids that a crash left behind, and delete them.

        Not done at the opening, where nobody wants to wait for it, but beside the commits.
        """
        if self.loop is None:
            return
        loop, newest = self.loop, self.loop.pages.last_id
        chunks: dict[Any, list[int]] = {}

        def look() -> None:
            for chunk, partition in loop.store.scan(ID_CHUNKS, ("chunk", "partition")):
                if isinstance(chunk, int) and chunk <= newest:
                    chunks.setdefault(partition, []).append(chunk)

        def found(error: BaseException | None) -> None:
            if error is not None or self.loop is not loop:
                return
            # A damaged run is noticed, and answered for, where its ids are asked for.
            with contextlib.suppress(Damaged):
                delete_orphans()

        def delete_orphans() -> None:
            out = WriteBatch()
            for seat_id, left in chunks.items():
                seat = self.seats.get(seat_id)
                if seat is not None and seat.partition is None:
                    # Offline, perhaps damaged: nothing of it is deleted.
                    continue
                for chunk in left if seat is None else seat.online().ids.orphans(left):
                    out.delete(ID_CHUNKS, (chunk,))
            loop.write(out)

        self.threads.keep_house(look, found)

    def take_offline(self, reason: str) -> None:
        """Forget everything that memory knows of the store's partitions."""
        for seat in self.seats.values():
            seat.partition = None
            seat.offline = reason
        self.failed.clear()
        loop, self.loop = self.loop, None
        if loop is not None:
            self.threads.let_go(loop.store)

    def check_disk(self, size: int, *, routing: bool = False, settling: bool = False) -> None:
        """Reject messages of that size if the disk is nearly full, or is gone."""
        loop = self.loop
        if loop is None:
            return
        # Asking a disk that hangs for its free space would not return either.
        self.check_healthy()
        try:
            self._disk.check(loop.store, size, routing=routing, settling=settling)
        except StoreFailed as error:
            # A disk that cannot even be asked takes nothing: whoever waits need not find out.
            loop.abandon(error)
            self._failed(loop, error)
            raise PartitionOffline(f"store {self.name} failed: {error}") from error

    def read_beside(self, work: Work, done: Done) -> None:
        """Read in the store beside the commits, on a thread of its own."""
        self.threads.read(work, done)

    def stop(self) -> None:
        """End the threads and close the store."""
        self.threads.stop()
        if self.loop is not None:
            self.loop.store.close()
            self.loop = None


def open_known(
    open_store: OpenStore, name: str, identity: bytes | None, before: Store | None
) -> Store:
    """Open a store; reject files of another store, and files older than those open `before`."""
    store = open_store(name, identity is not None)
    wrong = ""
    if identity not in (None, store.identity):
        wrong = "are not its own: its disk may not be mounted, or they were replaced"
    elif before is not None and store.position < before.position:
        wrong = (
            f"end at commit {store.position} and were at {before.position}: they were replaced "
            "by an older copy"
        )
    if wrong:
        store.close()
        raise Damaged(
            f"the files of store {name} {wrong}. Nothing was changed; put the right files back"
        )
    return store
