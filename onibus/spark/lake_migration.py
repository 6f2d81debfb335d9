"""Lakes of earlier versions become Delta tables with today's columns, in place.

A lake of version 0.1.0 has no identity. Its files are listed with their digests in a manifest, and
its position is where they end. A shared reader, `capture` or `capture-outcomes`, is removed once
the lake that moved it has its own. Where another lake may still need it, it gets an idle limit.

A lake is converted table by table. Messages and errors are written again in today's columns
(lake_columns.py); files of outcomes get a second name. One commit of the Delta log has all of a
table, and the manifest's layout changes last. Until then readers use the earlier files. Conversion
can stop at any point and begin again: files that it has written already are found by their names
and digests. A later capture removes the earlier files when they are old.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from onibus.api.log import LogPositions
from onibus.client import Client
from onibus.core.errors import PartitionOffline
from onibus.spark.delta_log import DeltaLog, path_of, row_of
from onibus.spark.delta_schema import arrow_schema, schema_string
from onibus.spark.lake import (
    ERRORS,
    MESSAGES,
    OUTCOMES,
    TABLES,
    Covered,
    Lake,
    LakeFile,
    digest_of,
    name_of,
)
from onibus.spark.lake_columns import body_of, errors_of, is_current, messages_of, with_set_aside
from onibus.spark.lake_files import LakeFailed
from onibus.spark.lake_manifest import TYPED, FileRow
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
    """Make Delta tables with today's columns of the files of an earlier lake."""
    lake, manifest = writer.lake, writer.manifest
    schema = writer.logs[MESSAGES].schema
    earlier = _earlier_rows(writer, MESSAGES)
    if earlier and not schema:
        # A lake without Delta tables: its files have the columns.
        schema = schema_string(
            lake.read(LakeFile(name_of(MESSAGES, earlier[0]), earlier[0]))[1].schema
        )
    body = body_of(schema) if schema else None
    aside = _set_aside(writer) if earlier else {}
    for table in TABLES:
        _convert_table(writer, table, aside)
    writer.commit(layout=TYPED, files={}, body=body or manifest.body)
    writer.read_logs()


def _earlier_rows(writer: LakeWriter, table: str) -> list[FileRow]:
    """Return the files of a table that are not converted yet."""
    log = writer.logs[table]
    if log.version < 0:
        return writer.manifest.files.get(table, [])
    return [] if not log.schema or is_current(log.schema) else log.files()


def _set_aside(writer: LakeWriter) -> dict[int, pa.Table]:
    """Return by partition the messages that are in the table of errors only."""
    found: dict[int, list[pa.Table]] = {}
    for row in _earlier_rows(writer, ERRORS):
        found.setdefault(row.partition, []).append(_checked(writer.lake, ERRORS, row))
    return {at: pa.concat_tables(some, promote_options="default") for at, some in found.items()}


def _convert_table(writer: LakeWriter, table: str, aside: Mapping[int, pa.Table]) -> None:
    """Convert a table by one commit, unless an earlier conversion has."""
    lake, log = writer.lake, writer.logs[table]
    rows = _earlier_rows(writer, table)
    if log.version >= 0 and (not log.schema or is_current(log.schema)):
        return
    if log.version < 0 and not rows:
        return
    converts: dict[str, Convert] = {MESSAGES: partial(_messages, aside), ERRORS: _errors}
    convert = converts.get(table)
    if convert is None:
        # Outcomes have the columns that they had.
        added = [_copied(lake, table, row) for row in rows]
    else:
        there = _written(lake, table, log)
        added = [_converted(lake, table, row, convert, there) for row in rows]
    columns = ""
    if log.version >= 0 and convert is not None:
        empty = arrow_schema(log.schema).empty_table()
        columns = schema_string(convert(FileRow("", 0, 0, 0, 0, 0, ""), empty).schema)
    removed = rows if log.version >= 0 else []
    reached = {} if log.version >= 0 else _reached(writer, table)
    writer.register(table, "CONVERT", added, removed, reached, columns=columns)


def _reached(writer: LakeWriter, table: str) -> dict[str, int]:
    progress = writer.manifest.tables.get(table)
    name = writer.lake.identity() or writer.token
    return {
        f"{name}-{partition}": following - 1
        for partition, (start, following) in enumerate(
            zip(progress.start, progress.next, strict=True) if progress else ()
        )
        if following > start
    }


def _messages(aside: Mapping[int, pa.Table], row: FileRow, rows: pa.Table) -> pa.Table:
    found = messages_of(rows)
    others = aside.get(row.partition)
    if others is None:
        return found
    numbers = others.column("sequence_number")
    inside = pc.and_(pc.greater_equal(numbers, row.first), pc.less_equal(numbers, row.last))
    return with_set_aside(found, others.filter(inside))


def _errors(row: FileRow, rows: pa.Table) -> pa.Table:
    return errors_of(rows)


#: Returns the rows of a file in the columns of today.
Convert = Callable[[FileRow, pa.Table], pa.Table]
#: The date, partition and range of a file.
_Span = tuple[str, int, int, int]


def _written(lake: Lake, table: str, log: DeltaLog) -> dict[_Span, list[str]]:
    """Return files that do not count, by their span: an earlier conversion may have made them."""
    listed = {path_of(row) for row in log.files()}
    found: dict[_Span, list[str]] = {}
    for name in lake.store.sizes(table):
        path = name[len(table) + 1 :]
        row = row_of(path, 0, "")
        if row is not None and path not in listed:
            found.setdefault(_span(row), []).append(path)
    return found


def _span(row: FileRow) -> _Span:
    return row.date, row.partition, row.first, row.last


def _converted(
    lake: Lake, table: str, row: FileRow, convert: Convert, there: Mapping[_Span, list[str]]
) -> FileRow:
    """Write the rows of a file in the columns of today, unless that was done before."""
    rows = convert(row, _checked(lake, table, row))
    schema = schema_string(rows.schema)
    for path in there.get(_span(row), ()):
        found = lake.written(table, path)
        if found is not None and (found.rows, found.schema) == (rows.num_rows, schema):
            return found
    return lake.write(table, rows, Covered(*_span(row))).row


def _checked(lake: Lake, table: str, row: FileRow) -> pa.Table:
    """Return the rows of a file, if it has the bytes that were captured."""
    content, rows = lake.read(LakeFile(name_of(table, row), row))
    if not digest_of(content).startswith(row.digest):
        raise _changed(lake, table, row)
    return rows


def _copied(lake: Lake, table: str, row: FileRow) -> FileRow:
    """Give a file its second name, if it has the bytes that were captured."""
    new = lake.copied(table, row)
    if not row.digest.startswith(new.digest):
        raise _changed(lake, table, row)
    return new


def _changed(lake: Lake, table: str, row: FileRow) -> LakeFailed:
    return LakeFailed(
        f"{lake.address(name_of(table, row))} was changed: it has {table} {row.first} to "
        f"{row.last} of partition {row.partition}. Restore it"
    )


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
