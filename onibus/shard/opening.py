"""Opening a shard: a thread opens its store and reads it back, then its partitions are online."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Container
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from onibus.core.errors import Damaged
from onibus.core.partition import Partition
from onibus.core.path.recover import COLUMNS, SOURCES, Rows, recover
from onibus.core.records import (
    BLOCK_INDEX,
    BLOCKS,
    ID_CHUNKS,
    META,
    STAGED,
    WORKS,
    Table,
    WriteBatch,
)
from onibus.core.staged import facts_of
from onibus.shard.commits import CommitLoop
from onibus.shard.partition import ShardPartition
from onibus.shard.shard import Host, Shard, Staged
from onibus.store.interface import OpenStore, Store


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A store that was opened and read back, before clients use it."""

    loop: CommitLoop
    boot: int
    #: of the shard when it was read
    shape: int
    partitions: dict[int, Partition]
    #: of their named readers, which decide the rows that are kept
    positions: dict[int, Any]
    staged: Staged
    #: the operations that it has decided
    works: dict[int, bytes]

    def holds(self, shard: Shard, host: Host) -> bool:
        """Return whether nothing has changed since that it was read with."""
        return self.shape == shard.shape and all(
            host.positions(partition) == self.positions[partition.id]
            for partition in shard.partitions.values()
        )


def read_shard(shard: Shard, host: Host, identity: bytes | None) -> Opening:
    """Open the store of a shard, known by that identity if it existed before, and read it back.

    Any thread may do it: it changes nothing that clients use. `serve_shard` does.
    """
    shape, placed = shard.shape, list(shard.partitions.values())
    store = shard.opened = open_known(shard.open_store, shard.name, identity, shard.opened)
    # Recovery makes many objects and no garbage: collecting it would double the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        loop = CommitLoop(
            store,
            shard.threads.write,
            before=shard.take_in,
            after=shard.committed,
            failed=lambda loop, error: host.went_down(shard.name, loop, error),
            inline=host.inline_commits,
        )
        boot = count_boot(store)
        rows, orphans = _read(placed, store)
        staged = _read_staged(rows, store, orphans)
        works: Any = store.scan(WORKS)
        decided = dict(works)
        if identity is None and orphans:
            raise Damaged(
                f"store {shard.name} has messages, but is not in the namespace: the data "
                "directory may not be mounted, or is the wrong one. Nothing was changed; name "
                "the directory that belongs to this store"
            )
        records = WriteBatch()
        partitions, positions = {}, {}
        for partition in placed:
            positions[partition.id] = host.positions(partition)
            core = partitions[partition.id] = host.new_partition(partition, loop.pages, boot)
            orphans += recover(core, rows[partition.id])
        for table, key in orphans:
            records.delete(table, key)
            if table is BLOCK_INDEX:
                records.delete(BLOCKS, key)
        loop.write(records)
    except BaseException:
        store.close()
        raise
    finally:
        if collecting:
            gc.enable()
    return Opening(loop, boot, shape, partitions, positions, staged, decided)


def serve_shard(shard: Shard, host: Host, opening: Opening) -> bool:
    """Use a store that was read back; return False if its entities have changed since."""
    loop = opening.loop
    if not opening.holds(shard, host):
        loop.store.close()
        return False
    shard.boot, shard.staged, shard.works = opening.boot, opening.staged, opening.works
    shard.identity, shard.notice = loop.store.identity, loop.store.notice
    loop.seconds = shard.commit_seconds
    host.disk.watch(loop)
    shard.failed.clear()
    for partition in shard.partitions.values():
        partition.take(opening.partitions[partition.id])
    shard.seen = max((core.seen for core in opening.partitions.values()), default=0)
    shard.loop = loop
    shard.error = None
    return True


def count_boot(store: Store) -> int:
    """Count this opening: tokens of before a crash never match those of after it (B8)."""
    row = store.read(META, ("boot",))
    boot = (row[1] if row is not None and isinstance(row[1], int) else 0) + 1
    batch = WriteBatch()
    batch.put(META, ("boot", boot))
    store.commit(batch)
    return boot


def _read(
    partitions: list[ShardPartition], store: Store
) -> tuple[dict[int, Rows], list[tuple[Table, Any]]]:
    """Return the rows of each of these partitions, and the keys of all others.

    The others are left of deleted entities.
    """
    rows: dict[int, Rows] = {partition.id: {} for partition in partitions}
    orphans: list[tuple[Table, Any]] = []
    for table, column in SOURCES.items():
        found: dict[Any, list[Any]] = {}
        scanned = store.scan(table, COLUMNS.get(table, ()))
        for core, group in groupby(scanned, itemgetter(column)):
            found.setdefault(core, []).extend(group)
        for core, bucket in found.items():
            if core in rows:
                rows[core][table] = bucket
            else:
                orphans += [(table, row[: table.key]) for row in bucket]
    return rows, orphans


def _read_staged(known: Container[int], store: Store, orphans: list[tuple[Table, Any]]) -> Staged:
    """Return the parts staged for known partitions; add the rest to the orphans."""
    staged: Staged = {}
    rows: Any = store.scan(STAGED, ("work", "partition", "piece"))
    for work, partition, piece in rows:
        if partition in known:
            staged.setdefault(partition, {}).setdefault(work, []).append(piece)
        else:
            row: Any = store.read(STAGED, (work, partition, piece))
            orphans.append((STAGED, row[: STAGED.key]))
            orphans += [(BLOCKS, (block,)) for block in facts_of(row[-1]).blocks]
    return staged


def delete_orphans(shard: Shard) -> None:
    """Delete chunks of recorded ids that a crash left behind, a while after the opening."""
    if shard.loop is None:
        return
    loop, newest = shard.loop, shard.loop.pages.last_id
    chunks: dict[Any, list[int]] = {}

    def look() -> None:
        for chunk, core in loop.store.scan(ID_CHUNKS, ("chunk", "partition")):
            if isinstance(chunk, int) and chunk <= newest:
                chunks.setdefault(core, []).append(chunk)

    def found(error: BaseException | None) -> None:
        if error is not None or shard.loop is not loop:
            return
        # A damaged run raises its error when its ids are read.
        with contextlib.suppress(Damaged):
            delete()

    def delete() -> None:
        out = WriteBatch()
        for partition_id, left in chunks.items():
            partition = shard.partitions.get(partition_id)
            if partition is not None and partition.core is None:
                # Offline, perhaps damaged: nothing of it is deleted.
                continue
            for chunk in left if partition is None else partition.online().ids.orphans(left):
                out.delete(ID_CHUNKS, (chunk,))
        loop.write(out)

    shard.threads.keep_house(look, found)


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
