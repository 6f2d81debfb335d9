"""Lakes of earlier versions become Delta tables, in place.

A lake of version 0.1.0 has no identity. Its files are listed with their digests in a manifest, and
its position is where they end. A shared reader, `capture` or `capture-outcomes`, is removed once
the lake that moved it has its own. Where another lake may still need it, it gets an idle limit.

A lake whose manifest lists its files is converted table by table. Files get a second name in the
new layout, one commit of the Delta log has all of a table, and the manifest's layout changes last.
Until then readers use the files under their earlier names; conversion can stop at any point and
begin again. A later capture removes the earlier names when they are old.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from onibus.api.log import LogPositions
from onibus.client import Client
from onibus.core.errors import PartitionOffline
from onibus.spark.lake import ERRORS, MESSAGES, OUTCOMES, TABLES, Lake, digest_of
from onibus.spark.lake_earlier import earlier_name
from onibus.spark.lake_files import LakeFailed
from onibus.spark.lake_manifest import DELTA, FileRow
from onibus.spark.lake_writer import LakeWriter

#: The shared readers of version 0.1.0, and the tables that they read.
_SHARED = {"capture": MESSAGES, "capture-outcomes": OUTCOMES}


@dataclass
class Adopted:
    """What counts of a table of an earlier lake."""

    start: list[int]
    next: list[int]
    files: list[FileRow] = field(default_factory=list)
    #: partition, first and last number of rows that are neither here nor in the log
    holes: list[tuple[int, int, int]] = field(default_factory=list)


def adopt(lake: Lake, table: str, ends: LogPositions) -> Adopted:
    """Return the files of a table of an earlier lake, with their rows and digests.

    A batch that was cut off may have left files behind a hole. They are left out if the rows of the
    hole can be read again, and are captured again with them.
    """
    earliest = []
    for partition, number in enumerate(ends.earliest):
        if number is None:
            raise PartitionOffline(f"partition {partition} of {ends.entity} is offline")
        earliest.append(number)
    # A partition without files begins at its earliest row.
    found = Adopted(list(earliest), list(earliest))
    begun: set[int] = set()
    left: set[int] = set()
    for row in sorted(_rows(lake, table), key=lambda row: row.first):
        at = row.partition
        if at not in begun:
            begun.add(at)
            found.start[at] = found.next[at] = row.first
        if row.first != found.next[at] and earliest[at] <= found.next[at]:
            left.add(at)
        if at in left:
            continue
        if row.first < found.next[at]:
            raise LakeFailed(
                f"{lake.store.address} has {table} {row.first} to {found.next[at] - 1} of "
                f"partition {at} twice: capture into another lake"
            )
        if row.first > found.next[at]:
            found.holes.append((at, found.next[at], row.first - 1))
        found.files.append(row)
        found.next[at] = row.last + 1
    return found


def adopt_errors(lake: Lake, until: list[int]) -> list[FileRow]:
    """Return the files of bodies that could not be decoded, as far as messages count."""
    return [row for row in _rows(lake, ERRORS) if row.last < until[row.partition]]


def _rows(lake: Lake, table: str) -> Iterator[FileRow]:
    for one in lake.files(table):
        content, rows = lake.read(one)
        yield replace(one.row, rows=rows.num_rows, digest=digest_of(content))


def convert(writer: LakeWriter) -> None:
    """Make Delta tables of the files that the manifest lists."""
    lake, manifest = writer.lake, writer.manifest
    name = lake.identity() or writer.token
    for table in TABLES:
        rows = manifest.files.get(table, [])
        if not rows or writer.logs[table].version >= 0:
            # Nothing to convert, or an earlier conversion stopped after this table.
            continue
        progress = manifest.tables.get(table)
        reached = {
            f"{name}-{partition}": following - 1
            for partition, (start, following) in enumerate(
                zip(progress.start, progress.next, strict=True) if progress else ()
            )
            if following > start
        }
        added = [_copied(lake, table, row) for row in rows]
        writer.register(table, "CONVERT", added, reached=reached)
    writer.commit(layout=DELTA, files={})
    writer.read_logs()


def _copied(lake: Lake, table: str, row: FileRow) -> FileRow:
    """Give a file its second name, if it has the bytes that were captured."""
    new = lake.copied(table, row)
    if not row.digest.startswith(new.digest):
        raise LakeFailed(
            f"{lake.address(earlier_name(table, row))} was changed: it has {table} {row.first} to "
            f"{row.last} of partition {row.partition}. Restore it"
        )
    return new


def retire_shared_readers(client: Client, lake: Lake, idle_ms: int) -> None:
    """Remove the shared readers that this lake moved; give the others an idle limit."""
    for reader in client.readers(lake.entity):
        table = _SHARED.get(reader.name)
        if table is None or reader.log != table:
            continue
        if list(reader.positions) in _moved_to(lake, table):
            client.delete_reader(lake.entity, reader.name)
        elif reader.idle_ms is None:
            client.take_reader(lake.entity, reader.name, idle_ms=idle_ms)


def _moved_to(lake: Lake, table: str) -> list[list[int]]:
    """Return the positions to which the capture of an earlier lake has moved its reader."""
    found = []
    for name in lake.store.sizes(f"_checkpoint/{table}/offsets"):
        for line in (lake.store.read(name) or b"").decode("utf-8", "replace").splitlines():
            try:
                following = json.loads(line)["next"]
                found.append([following[str(at)] for at in range(len(following))])
            except (ValueError, KeyError, TypeError):
                continue
    return found
