"""Replay: messages of a lake, or of what an entity retains, into an entity once more (X7).

What is sent is planned first: which numbers, cut into chunks that keep the order of each partition.
The plan is a file, so that a replay which is started again sends the same chunks however much has
come or gone meanwhile; each is a numbered batch (R6), so the bus itself knows which were sent.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.spark.lake import MESSAGES, Lake
from onibus.spark.options import write_options
from onibus.spark.shaping import by_partition, shape_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Messages of a chunk; with a rate limit, those of so many seconds.
CHUNK = 100_000
CHUNK_SECONDS = 5
#: How often a replay that waits looks whether it is to stop.
_LOOK_S = 0.2
_NAME_LENGTH_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages: all conditions hold. Times are milliseconds since 1970."""

    since_ms: int | None = None
    #: up to, without, this time
    until_ms: int | None = None
    partition: int | None = None
    #: the first and the last sequence number
    first: int | None = None
    last: int | None = None
    #: a condition in Spark SQL over the columns of the log: subject = 'paid' AND …
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did, or would do."""

    #: messages that it was to send, and how many of these it sent, this time or before
    chosen: int = 0
    sent: int = 0
    chunks: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is sent together: of each partition, from one number to another."""

    count: int
    #: (partition, first, last)
    ranges: tuple[tuple[int, int, int], ...]


def log_rows(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    """Return what an entity retains."""
    return spark.read.format("onibus").options(**source).load()


def lake_rows(spark: SparkSession, lake: str, entity: str) -> DataFrame:
    """Return what was captured of an entity."""
    paths = Lake(lake, entity).paths(MESSAGES)
    if not paths:
        raise InvalidOperation(f"{lake!r} has no messages of {entity!r}: capture it first")
    return spark.read.parquet(*paths)


def replay(
    rows: DataFrame,
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
    """Send messages again, to the entity that the options `target` name.

    `name` is the replay's own: started again under it, and with the same folder `state`, it goes on
    where it was. With `new_ids` messages get ids made of the name and their old numbers; with their
    old ids an entity that still remembers them takes them for duplicates. `rate` is messages a
    second. A dry run only counts.
    """
    if not 0 < len(name) <= _NAME_LENGTH_MAX or "/" in name:
        raise InvalidArgument(f"a replay's name has 1 to {_NAME_LENGTH_MAX} characters and no /")
    if rate is not None and rate <= 0:
        raise InvalidArgument(f"a rate is messages a second, more than 0, not {rate}")
    chosen = select(rows, selection or Selection())
    size = CHUNK if rate is None else max(1, min(CHUNK, int(rate * CHUNK_SECONDS)))
    if dry_run:
        return _told(plan(chosen, size), 0)
    meant = {
        "target": write_options(target).entity,
        "selection": asdict(selection or Selection()),
        "new_ids": new_ids,
    }
    job = _Replay(chosen, dict(target), name, new_ids, rate)
    chunks = job.planned(Path(state) / f"{name}.json", meant, size)
    return job.send(chunks, on_progress, stopped)


def select(rows: DataFrame, selection: Selection) -> DataFrame:
    """Return the messages that are meant; markers of scheduled ones are none."""
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
    """Cut messages into chunks of about so many, older ones first, partitions in their order."""
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


def _told(chunks: list[Chunk], sent: int) -> Replayed:
    done = sum(chunk.count for chunk in chunks[:sent])
    return Replayed(sum(chunk.count for chunk in chunks), done, len(chunks))


class _Replay:
    """A replay under way, on the driver."""

    def __init__(
        self,
        chosen: DataFrame,
        target: dict[str, str],
        name: str,
        new_ids: bool,
        rate: float | None,
    ) -> None:
        self._chosen = chosen
        self._target = target
        self._options = write_options(target)
        self._name = name
        self._new_ids = new_ids
        self._rate = rate
        self._producer = f"replay-{name}"

    def planned(self, path: Path, meant: Mapping[str, Any], size: int) -> list[Chunk]:
        """Return the plan of this replay: the one that was made before, if there is one."""
        if path.exists():
            kept = json.loads(path.read_text("utf-8"))
            if kept["meant"] != meant:
                raise InvalidOperation(
                    f"{path} is the plan of another replay named {self._name!r}: use another name"
                )
            return [Chunk(count, tuple(map(tuple, ranges))) for count, ranges in kept["chunks"]]
        if self._sent() >= 0:
            raise InvalidOperation(
                f"a replay named {self._name!r} was sent to {self._options.entity} before, and its "
                f"plan {path} is not there: use another name"
            )
        chunks = plan(self._chosen, size)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}")
        told = {"meant": meant, "chunks": [(one.count, one.ranges) for one in chunks]}
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(told, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        return chunks

    def _sent(self) -> int:
        """Return the last chunk that was sent; -1 where none was."""
        with self._options.client() as client:
            known = client.producers(self._options.entity)
        return max((one.batch for one in known if one.producer == self._producer), default=-1)

    def send(
        self,
        chunks: list[Chunk],
        on_progress: Callable[[Replayed], None],
        stopped: Callable[[], bool],
    ) -> Replayed:
        """Send what was not sent yet, not faster than allowed."""
        begun = time.monotonic()
        partitions, by_message_id = shape_of(self._target)
        start = self._sent() + 1
        done = _told(chunks, start)
        before = done.sent
        for number in range(start, len(chunks)):
            if not self._wait(begun, done.sent - before, stopped):
                break
            rows = by_partition(
                self._rows_of(chunks[number]),
                order_by=["enqueued_time", "sequence_number"],
                partitions=partitions,
                by_message_id=by_message_id,
            )
            given = {**self._target, "producer": self._producer, "batch": str(number)}
            rows.write.format("onibus").options(**given).mode("append").save()
            done = replace(_told(chunks, number + 1), seconds=time.monotonic() - begun)
            on_progress(done)
        return replace(done, seconds=time.monotonic() - begun)

    def _wait(self, begun: float, sent: int, stopped: Callable[[], bool]) -> bool:
        """Wait until more may be sent; tell whether it shall be."""
        due = begun if self._rate is None else begun + sent / self._rate
        while not stopped():
            left = due - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, _LOOK_S))
        return False

    def _rows_of(self, chunk: Chunk) -> DataFrame:
        from pyspark.sql import functions as sql

        wanted = sql.lit(False)
        for partition, first, last in chunk.ranges:
            number = sql.col("sequence_number")
            wanted |= (sql.col("partition") == partition) & number.between(first, last)
        # Pushed down to the log: what lies outside of all ranges is not read.
        lowest = min(first for _, first, _ in chunk.ranges)
        highest = max(last for _, _, last in chunk.ranges)
        rows = self._chosen.where(sql.col("sequence_number").between(lowest, highest)).where(wanted)
        if self._new_ids:
            made = sql.concat(sql.lit(f"{self._name}/"), sql.col("sequence_number"))
            rows = rows.withColumn("message_id", made)
        # It was scheduled once; now it is sent.
        return rows.drop("scheduled_enqueue_time")
