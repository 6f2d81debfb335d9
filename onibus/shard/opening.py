"""Opening a shard: its store is opened and read back, and its partitions are online."""

from __future__ import annotations

import contextlib
import gc
from itertools import groupby
from operator import itemgetter
from typing import Any

from onibus.core.errors import Damaged
from onibus.core.path.recover import COLUMNS, SOURCES, Rows, recover
from onibus.core.records import BLOCK_INDEX, BLOCKS, ID_CHUNKS, META, STAGED, Table, WriteBatch
from onibus.core.staged import blocks_of
from onibus.shard.commits import CommitLoop
from onibus.shard.shard import Host, Shard
from onibus.store.interface import OpenStore, Store


def open_shard(shard: Shard, host: Host, identity: bytes | None) -> None:
    """Open the store of a shard, known by that identity if it existed before, and read it back."""
    store = shard.opened = open_known(shard.open_store, shard.name, identity, shard.opened)
    shard.identity, shard.notice = store.identity, store.notice
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
        loop.seconds = shard.commit_seconds
        host.disk.watch(loop)
        shard.boot = _count_boot(store)
        rows, orphans = _read(shard, store)
        shard.staged = _read_staged(shard, store, orphans)
        if identity is None and orphans:
            raise Damaged(
                f"store {shard.name} has messages, but is not in the namespace: the data "
                "directory may not be mounted, or is the wrong one. Nothing was changed; name "
                "the directory that belongs to this store"
            )
        records = WriteBatch()
        shard.failed.clear()
        for seat in shard.seats.values():
            partition = host.new_partition(seat, loop.pages)
            orphans += recover(partition, rows.get(seat.id, {}))
            seat.partition = partition
            seat.pending_bytes = 0
        for table, key in orphans:
            records.delete(table, key)
            if table is BLOCK_INDEX:
                records.delete(BLOCKS, key)
        loop.write(records)
    except BaseException:
        shard.take_offline("cannot read its store")
        store.close()
        raise
    finally:
        if collecting:
            gc.enable()
    shard.loop = loop
    shard.error = None


def _count_boot(store: Store) -> int:
    """Count this opening: tokens of before a crash never match those of after it (B8)."""
    row = store.read(META, ("boot",))
    boot = (row[1] if row is not None and isinstance(row[1], int) else 0) + 1
    batch = WriteBatch()
    batch.put(META, ("boot", boot))
    store.commit(batch)
    return boot


def _read(shard: Shard, store: Store) -> tuple[dict[int, Rows], list[tuple[Table, Any]]]:
    """Return the rows of each partition of the shard, and the keys of all others.

    The others are left of deleted entities.
    """
    rows: dict[int, Rows] = {seat: {} for seat in shard.seats}
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
    shard: Shard, store: Store, orphans: list[tuple[Table, Any]]
) -> dict[int, dict[int, list[int]]]:
    """Return what is staged for partitions of the shard; add the rest to the orphans."""
    staged: dict[int, dict[int, list[int]]] = {}
    rows: Any = store.scan(STAGED, ("work", "partition", "piece"))
    for work, partition, piece in rows:
        if partition in shard.seats:
            staged.setdefault(partition, {}).setdefault(work, []).append(piece)
        else:
            row: Any = store.read(STAGED, (work, partition, piece))
            orphans.append((STAGED, row[: STAGED.key]))
            orphans += [(BLOCKS, (block,)) for block in blocks_of(row[-1])]
    return staged


def delete_orphans(shard: Shard) -> None:
    """Delete chunks of recorded ids that a crash left behind, a while after the opening."""
    if shard.loop is None:
        return
    loop, newest = shard.loop, shard.loop.pages.last_id
    chunks: dict[Any, list[int]] = {}

    def look() -> None:
        for chunk, partition in loop.store.scan(ID_CHUNKS, ("chunk", "partition")):
            if isinstance(chunk, int) and chunk <= newest:
                chunks.setdefault(partition, []).append(chunk)

    def found(error: BaseException | None) -> None:
        if error is not None or shard.loop is not loop:
            return
        # A damaged run raises its error when its ids are read.
        with contextlib.suppress(Damaged):
            delete()

    def delete() -> None:
        out = WriteBatch()
        for seat_id, left in chunks.items():
            seat = shard.seats.get(seat_id)
            if seat is not None and seat.partition is None:
                # Offline, perhaps damaged: nothing of it is deleted.
                continue
            for chunk in left if seat is None else seat.online().ids.orphans(left):
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
