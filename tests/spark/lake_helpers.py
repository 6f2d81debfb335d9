"""Captures without a JVM: the driver's part and the tasks' part, with Spark left out between."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onibus.client import Client
from onibus.core.message import Message
from onibus.spark.batch_reading import batch_reader
from onibus.spark.decoding.formats import BodyFormat
from onibus.spark.jobs.capture import Captured, capture_by, written
from onibus.spark.lake import KEEP_MS, MESSAGES, NUMBERS, Lake
from onibus.spark.lake_capture import Capturing, Ranges
from onibus.spark.lake_manifest import FileRow
from onibus.spark.options import Position, ReadOptions, read_options
from onibus.spark.schema import known_columns, spark_schema


class Crash(Exception):
    """The end of a driver."""


class Captures:
    """Captures of one queue of a server."""

    def __init__(self, server: str | dict[str, str], entity: str) -> None:
        given = {"connection": server} if isinstance(server, str) else server
        self.options = read_options({**given, "entity": entity})
        self.entity = entity

    def lake(self, place: Path) -> Lake:
        return Lake(str(place), self.entity)

    def run(
        self,
        place: Path,
        *,
        crash: str = "",
        most: int | None = None,
        bad: Callable[[int], bool] | None = None,
        written_to: Path | None = None,
        **given: Any,
    ) -> Captured:
        """Capture; `crash` ends it once tasks have `written` the first batch's files.

        The bodies of messages whose numbers are `bad` cannot be decoded. Tasks write to
        `written_to` if their machine has another file system.
        """
        lake = self.lake(place)
        options = replace(self.options, max_messages_per_trigger=most)
        files = self._files(options, bad)
        if bad is not None:
            given.setdefault("body", BodyFormat(format="text"))

        def run(what: Capturing, incarnation: int, ranges: Ranges) -> dict[str, list[FileRow]]:
            there = replace(what, place=self.lake(written_to or place).place)
            found = files(there, incarnation, ranges)
            if crash == "written":
                raise Crash
            return found

        given.setdefault("wait_s", 0)
        return capture_by(run, options, lake, **given)

    def _files(
        self, options: ReadOptions, bad: Callable[[int], bool] | None
    ) -> Callable[[Capturing, int, Ranges], dict[str, list[FileRow]]]:
        def run(what: Capturing, incarnation: int, ranges: Ranges) -> dict[str, list[FileRow]]:
            given = replace(
                options,
                table=what.table,
                properties_format="map",
                incarnation=incarnation,
                max_messages_per_trigger=None,
                starting_position=Position("earliest", {p: s for p, (s, _) in ranges.items()}),
                ending_position=Position("latest", {p: e for p, (_, e) in ranges.items()}),
                pushdown=False,
            )
            reader = batch_reader(given, spark_schema(known_columns(given)))
            found: dict[str, list[FileRow]] = {}
            for part in reader.partitions():
                rows = pa.Table.from_batches(list(reader.read(part)))
                if bad is not None and what.table == MESSAGES:
                    rows = with_bad_bodies(rows, bad)
                for one in written(what, rows).to_pylist():
                    name, *row = one.values()
                    found.setdefault(name, []).append(FileRow(*row))
            return found

        return run

    def numbers(self, place: Path, table: str = MESSAGES) -> list[int]:
        """The numbers of all rows that count."""
        return sorted(number for number, _ in self.rows(place, table))

    def rows(self, place: Path, table: str = MESSAGES) -> Iterator[tuple[int, Any]]:
        lake = self.lake(place)
        for one in lake.files(table):
            rows = lake.read(one)[1]
            last = "body" if table == MESSAGES else "outcome"
            yield from zip(
                rows.column(NUMBERS[table]).to_pylist(), rows.column(last).to_pylist(), strict=True
            )


def with_bad_bodies(rows: pa.Table, bad: Callable[[int], bool]) -> pa.Table:
    """Return rows in which some bodies are not UTF-8."""
    wrong = [bad(number) for number in rows.column("sequence_number").to_pylist()]
    body = pc.if_else(pa.array(wrong), b"\xff", rows.column("body"))
    return rows.set_column(rows.column_names.index("body"), "body", body)


def data_files(folder: Path) -> list[str]:
    """The names of a table's files, whether they count or not."""
    return sorted(path.name for path in folder.glob("*.parquet"))


def make_old(folder: Path) -> None:
    """Make all files older than the time for which files stay that do not count."""
    past = time.time() - KEEP_MS / 1_000 - 60
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (past, past))


def send(client: Client, entity: str, first: int, last: int) -> None:
    """Send messages with their number as their body."""
    client.send_batch(entity, [Message(body=b"%d" % at) for at in range(first, last + 1)])


def consume(client: Client, entity: str) -> None:
    """Complete everything."""
    while client.receiver(entity, delete=True).receive(100, wait_ms=0):
        pass


def wait_until_gone(client: Client, entity: str, first: int) -> None:
    """Wait until the rows before a number are gone from the log."""
    deadline = time.monotonic() + 60
    while (client.log_positions(entity).earliest[0] or 0) < first:
        assert time.monotonic() < deadline
        time.sleep(0.02)
