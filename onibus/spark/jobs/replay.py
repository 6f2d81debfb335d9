"""Replay: send messages of a lake, or those that an entity retains, to an entity again (X7).

The replay is planned first: the numbers to send, cut into chunks that keep the order of each
partition. The plan is a file, so that a restarted replay sends the same chunks, whatever arrived in
between. Each chunk is a numbered batch (R6), so the bus records which were sent. A chunk with rows
that are no longer retained is rejected: none of it is sent.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onibus.api.log import LogPositions
from onibus.core.errors import (
    InvalidArgument,
    InvalidOperation,
    LogGap,
    PartitionOffline,
)
from onibus.spark.lake import MESSAGES, Lake
from onibus.spark.lake_columns import DECODED
from onibus.spark.lake_reaching import address_of
from onibus.spark.options import read_options, write_options
from onibus.spark.property_maps import json_of
from onibus.spark.shaping import by_partition, shape_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Messages of a chunk; with a rate limit, the seconds that a chunk covers.
CHUNK = 100_000
CHUNK_SECONDS = 5
#: How often a replay that waits looks whether it is to stop.
_LOOK_S = 0.2
_NAME_LENGTH_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of messages; all conditions apply. Times are in milliseconds since 1970."""

    since_ms: int | None = None
    #: end time, exclusive
    until_ms: int | None = None
    partition: int | None = None
    #: the first and the last sequence number
    first: int | None = None
    last: int | None = None
    #: a condition in Spark SQL over the columns of the log: subject = 'paid' AND …
    where: str | None = None
    #: the two times as the user wrote them, if so: `2h` means another time on every read, so a
    #: restarted replay is recognised by these words, and keeps its times
    since: str | None = None
    until: str | None = None

    def meant(self) -> dict[str, Any]:
        """Return the parts that stay the same on every restart."""
        told = asdict(self)
        for words, moment in (("since", "since_ms"), ("until", "until_ms")):
            if told[words] is not None:
                del told[moment]
        return told


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a replay, or of a dry run."""

    #: messages to send, and how many of these were sent, now or before
    chosen: int = 0
    sent: int = 0
    chunks: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages sent together: a range of numbers per partition."""

    count: int
    #: (partition, first, last)
    ranges: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Messages to send, decided at the first start."""

    selection: Selection
    chunks: list[Chunk]

    def told(self, sent: int) -> Replayed:
        """Return the progress after a number of chunks."""
        done = sum(chunk.count for chunk in self.chunks[:sent])
        return Replayed(sum(chunk.count for chunk in self.chunks), done, len(self.chunks))


class Source(Protocol):
    """Source of messages."""

    def meant(self) -> dict[str, Any]:
        """Return the identity of this source, the same on every restart."""

    def rows(self) -> DataFrame:
        """Return all available rows."""

    def rows_of(self, chunk: Chunk) -> DataFrame:
        """Return at least the rows of a chunk; raise if some are no longer retained."""


@dataclass(frozen=True)
class LogSource:
    """Messages that an entity retains; the options are those of the format onibus."""

    spark: SparkSession
    options: Mapping[str, str] = field(repr=False)

    def meant(self) -> dict[str, Any]:
        ends = self._ends()
        return {"entity": ends.entity, "incarnation": ends.incarnation}

    def rows(self) -> DataFrame:
        return self.spark.read.format("onibus").options(**self.options).load()

    def rows_of(self, chunk: Chunk) -> DataFrame:
        starting, ending = pinned(chunk, self._ends())
        # Filters would narrow the request to rows that still exist, and hide a gap.
        given = {
            "startingPosition": json.dumps(starting),
            "endingPosition": json.dumps(ending),
            "failOnGap": "true",
            "pushdown": "false",
        }
        return self.spark.read.format("onibus").options(**self.options).options(**given).load()

    def _ends(self) -> LogPositions:
        options = read_options(self.options)
        with options.client() as client:
            return client.log_positions(options.entity)


@dataclass(frozen=True)
class LakeSource:
    """Captured messages of an entity."""

    spark: SparkSession
    lake: str
    entity: str

    def meant(self) -> dict[str, Any]:
        return {"lake": Lake(self.lake, self.entity).address(MESSAGES)}

    def rows(self) -> DataFrame:
        lake = Lake(self.lake, self.entity)
        if lake.sets_aside():
            raise InvalidOperation(
                f"{lake.store.address} was made by an earlier version: capture it once, which "
                "converts it, then replay"
            )
        paths = lake.paths(MESSAGES)
        if not paths:
            raise InvalidOperation(
                f"{address_of(self.lake)!r} has no messages of {self.entity!r}: capture it first"
            )
        return logged(self.spark.read.parquet(*paths))

    def rows_of(self, chunk: Chunk) -> DataFrame:
        return self.rows()


def logged(rows: DataFrame) -> DataFrame:
    """Return messages of a lake in the columns of the log."""
    from pyspark.sql.pandas.functions import arrow_udf

    # Its stubs want a kind of function that it finds by the annotations.
    encoded = arrow_udf(json_of, "string")  # type: ignore[call-overload]
    maps = encoded("properties", "property_types")
    return rows.withColumn("properties", maps).drop("property_types")


def pinned(chunk: Chunk, ends: LogPositions) -> tuple[dict[int, int], dict[int, int]]:
    """Return from where up to where each partition is read for a chunk, if all of it is there."""
    starting = {partition: number or 0 for partition, number in enumerate(ends.latest)}
    ending = dict(starting)
    for partition, first, last in chunk.ranges:
        earliest = ends.earliest[partition]
        if earliest is None:
            raise PartitionOffline(f"partition {partition} of {ends.entity} is offline")
        if first < earliest:
            lost = min(earliest - 1, last)
            raise LogGap(
                f"{ends.entity}, partition {partition}: messages {first} to {lost}, some of which "
                "were planned, are no longer retained. Nothing of their chunk was sent. A replay "
                "under another name sends the rest; a replay from a lake sends them all",
                first,
                lost,
            )
        starting[partition], ending[partition] = first, last + 1
    return starting, ending


def replay(
    source: Source,
    target: Mapping[str, str],
    *,
    name: str,
    state: str | Path,
    selection: Selection | None = None,
    new_ids: bool = False,
    rate: float | None = None,
    dry_run: bool = False,
    on_progress: Callable[[Replayed], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Send messages of a source again, to the entity that the options `target` name.

    `name` identifies the replay: restarted with it and the same folder `state`, it continues. With
    `new_ids` messages get ids made of the name and their old numbers. With their old ids, an entity
    that still has them recorded drops them as duplicates. `rate` is in messages per second. A dry
    run only counts.
    """
    if not 0 < len(name) <= _NAME_LENGTH_MAX or "/" in name:
        raise InvalidArgument(f"a replay name has 1 to {_NAME_LENGTH_MAX} characters and no /")
    if rate is not None and rate <= 0:
        raise InvalidArgument(f"rate is {rate}: use messages per second above 0")
    selection = selection or Selection()
    size = CHUNK if rate is None else max(1, min(CHUNK, int(rate * CHUNK_SECONDS)))
    if dry_run:
        return Plan(selection, plan(select(source.rows(), selection), size)).told(0)
    job = _Replay(source, dict(target), name, new_ids, rate)
    return job.send(job.planned(Path(state), selection, size), on_progress, stopped)


def select(rows: DataFrame, selection: Selection) -> DataFrame:
    """Return the selected messages, without markers of scheduled ones."""
    from pyspark.sql import functions as sql

    number, moment = sql.col("sequence_number"), sql.col("enqueued_time")
    chosen = rows.where(sql.col("kind") == "message")
    if selection.since_ms is not None:
        chosen = chosen.where(moment >= _time(selection.since_ms))
    if selection.until_ms is not None:
        chosen = chosen.where(moment < _time(selection.until_ms))
    if selection.partition is not None:
        chosen = chosen.where(sql.col("partition") == selection.partition)
    if selection.first is not None:
        chosen = chosen.where(number >= selection.first)
    if selection.last is not None:
        chosen = chosen.where(number <= selection.last)
    return chosen if selection.where is None else chosen.where(selection.where)


def _time(moment_ms: int) -> Column:
    from pyspark.sql import functions as sql

    return sql.lit(datetime.fromtimestamp(moment_ms / 1000, UTC))


def plan(chosen: DataFrame, size: int) -> list[Chunk]:
    """Cut messages into chunks of about that size, older ones first, partitions in order."""
    from pyspark.sql import functions as sql

    number = sql.col("sequence_number")
    pieces = (
        chosen.groupBy("partition", sql.floor(number / size).alias("piece"))
        .agg(
            sql.count("*").alias("count"),
            sql.min(number).alias("first"),
            sql.max(number).alias("last"),
            sql.min("enqueued_time").alias("time"),
        )
        .collect()
    )
    chunks: list[Chunk] = []
    count = 0
    ranges: dict[int, tuple[int, int]] = {}
    # Times never run backwards in a partition (S4): so its pieces come in order.
    for piece in sorted(pieces, key=lambda one: (one.time, one.partition, one.first)):
        if count and count + piece["count"] > size:
            chunks.append(_chunk(count, ranges))
            count, ranges = 0, {}
        count += piece["count"]
        first, _ = ranges.get(piece.partition, (piece.first, 0))
        ranges[piece.partition] = (first, piece.last)
    return [*chunks, _chunk(count, ranges)] if count else chunks


def _chunk(count: int, ranges: Mapping[int, tuple[int, int]]) -> Chunk:
    return Chunk(count, tuple((partition, *ends) for partition, ends in sorted(ranges.items())))


def kept_plan(path: Path, meant: Mapping[str, Any]) -> Plan | None:
    """Return the plan that was made before, if there is one; another replay's is an error."""
    if not path.exists():
        return None
    kept = json.loads(path.read_text("utf-8"))
    differ = sorted(name for name in meant if kept["meant"].get(name) != meant[name])
    if differ:
        raise InvalidOperation(
            f"{path} is the plan of another replay named {path.stem!r}, which differs in "
            f"{', '.join(differ)}: use another name"
        )
    chunks = [Chunk(count, tuple(map(tuple, ranges))) for count, ranges in kept["chunks"]]
    return Plan(Selection(**kept["selection"]), chunks)


def keep_plan(path: Path, meant: Mapping[str, Any], made: Plan) -> None:
    """Write a plan atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    told = {
        "meant": meant,
        "selection": asdict(made.selection),
        "chunks": [(one.count, one.ranges) for one in made.chunks],
    }
    with unfinished.open("w", encoding="utf-8") as file:
        json.dump(told, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def check_whole(chunk: Chunk, found: int) -> None:
    """Refuse a chunk that has not as many messages as were planned."""
    if found == chunk.count:
        return
    numbers = "; ".join(
        f"partition {partition}, {first} to {last}" for partition, first, last in chunk.ranges
    )
    raise InvalidOperation(
        f"expected {chunk.count} messages in {numbers}, but found {found}: some were deleted "
        "since, or the condition varies. Nothing of this chunk was sent. A replay under "
        "another name sends the messages that exist now"
    )


class _Replay:
    """A replay under way, on the driver."""

    def __init__(
        self,
        source: Source,
        target: dict[str, str],
        name: str,
        new_ids: bool,
        rate: float | None,
    ) -> None:
        self._source = source
        self._target = target
        self._options = write_options(target)
        self._name = name
        self._new_ids = new_ids
        self._rate = rate
        self._producer = f"replay-{name}"

    def planned(self, state: Path, selection: Selection, size: int) -> Plan:
        """Return the plan of this replay: the one that was made before, if there is one."""
        path = state / f"{self._name}.json"
        meant = {
            "source": self._source.meant(),
            "target": self._options.entity,
            "selection": selection.meant(),
            "new_ids": self._new_ids,
        }
        kept = kept_plan(path, meant)
        if kept is not None:
            return kept
        if self._sent() >= 0:
            raise InvalidOperation(
                f"replay {self._name!r} was already sent to {self._options.entity}, and its "
                f"plan {path} is missing: use another name"
            )
        made = Plan(selection, plan(select(self._source.rows(), selection), size))
        keep_plan(path, meant, made)
        return made

    def _sent(self) -> int:
        """Return the last chunk that was sent; -1 where none was."""
        with self._options.client() as client:
            known = client.producers(self._options.entity)
        return max((one.batch for one in known if one.producer == self._producer), default=-1)

    def send(
        self,
        made: Plan,
        on_progress: Callable[[Replayed], None],
        stopped: Callable[[], bool],
    ) -> Replayed:
        """Send what was not sent yet, not faster than allowed."""
        begun = time.monotonic()
        shape = shape_of(self._target)
        start = self._sent() + 1
        done = made.told(start)
        before = done.sent
        for number in range(start, len(made.chunks)):
            if not self._wait(begun, done.sent - before, stopped):
                break
            self._send_chunk(number, made, shape)
            done = replace(made.told(number + 1), seconds=time.monotonic() - begun)
            on_progress(done)
        return replace(done, seconds=time.monotonic() - begun)

    def _send_chunk(self, number: int, made: Plan, shape: tuple[int, bool]) -> None:
        """Send all of a chunk, or nothing of it."""
        partitions, by_message_id = shape
        chunk = made.chunks[number]
        # Kept while it is counted, so that what is sent is what was counted.
        found = self._rows_of(chunk, made.selection).persist()
        try:
            check_whole(chunk, found.count())
            rows = by_partition(
                found,
                order_by=["enqueued_time", "sequence_number"],
                partitions=partitions,
                by_message_id=by_message_id,
            )
            given = {**self._target, "producer": self._producer, "batch": str(number)}
            rows.write.format("onibus").options(**given).mode("append").save()
        finally:
            found.unpersist()

    def _wait(self, begun: float, sent: int, stopped: Callable[[], bool]) -> bool:
        """Wait until more may be sent; return whether to continue."""
        due = begun if self._rate is None else begun + sent / self._rate
        while not stopped():
            left = due - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, _LOOK_S))
        return False

    def _rows_of(self, chunk: Chunk, selection: Selection) -> DataFrame:
        from pyspark.sql import functions as sql

        wanted = sql.lit(False)
        for partition, first, last in chunk.ranges:
            number = sql.col("sequence_number")
            wanted |= (sql.col("partition") == partition) & number.between(first, last)
        # Parquet files tell between which numbers they are: the others are not read.
        lowest = min(first for _, first, _ in chunk.ranges)
        highest = max(last for _, _, last in chunk.ranges)
        chosen = select(self._source.rows_of(chunk), selection)
        rows = chosen.where(sql.col("sequence_number").between(lowest, highest)).where(wanted)
        if self._new_ids:
            made = sql.concat(sql.lit(f"{self._name}/"), sql.col("sequence_number"))
            rows = rows.withColumn("message_id", made)
        # It was scheduled once; now it is sent. Conditions may use what was decoded.
        return rows.drop("scheduled_enqueue_time", DECODED)
