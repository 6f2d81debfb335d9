"""The stories of a pipeline through Spark itself: queries with real checkpoints, and captures.

    python -m tests.spark.spark_sequences --sequences 300 --seed 1

A story is random: runs, crashes, restored copies, deleted files, rivals, recreated entities, two
lakes. What must be there is the same as without a JVM (stories.py).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from onibus.cli.pipeline import told_plainly
from onibus.core.errors import OnibusError
from onibus.spark.jobs.capture import capture
from onibus.spark.jobs.queries import patiently
from onibus.spark.lake import MESSAGES, NUMBERS, Lake
from onibus.spark.session import spark_session
from tests.spark.clusters import use_compiled_modules
from tests.spark.micro_batches import POINTS, Crash, Options
from tests.spark.served_bus import ServedBus
from tests.spark.stories import STEPS, Story, Wrong

#: Queries take seconds, so that a story has fewer steps than one without a JVM.
STEPS_EACH = 6


class Numbered:
    """The files of a checkpoint that are named after batches."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Any:
        names = self._folder.glob("*") if self._folder.exists() else ()
        return iter(sorted(int(path.name) for path in names if path.name.isdigit()))

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def discard(self, number: int) -> None:
        """Delete the file of a batch, with its checksum, as if it had never been written."""
        for name in (str(number), f".{number}.crc"):
            (self._folder / name).unlink(missing_ok=True)

    def pop(self, number: int, _: None = None) -> None:
        self.discard(number)


class FolderCheckpoint:
    """A checkpoint of Spark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offsets, self.commits = Numbered(path / "offsets"), Numbered(path / "commits")
        self.output: dict[int, list[str]] = {}

    def copy(self) -> FolderCheckpoint:
        other = Path(tempfile.mkdtemp(dir=self.path.parent)) / "checkpoint"
        if self.path.exists():
            shutil.copytree(self.path, other)
        return FolderCheckpoint(other)

    @property
    def last(self) -> int:
        return max(self.offsets, default=-1)


class SparkQuery:
    """A query from an entity to another one, on Spark."""

    def __init__(
        self, spark: SparkSession, sink: str, source: Options, target: Options, producer: str
    ) -> None:
        self._spark, self._sink, self._source = spark, sink, source
        self._target = target | {"producer": producer, "retrySeconds": "0"}

    def run(self, checkpoint: Any, at: Callable[[str, int], None]) -> None:
        """Process all available rows; `at` may end it."""
        crashed: list[Crash] = []

        def pass_by(points: tuple[str, ...], number: int) -> None:
            try:
                for point in points:
                    at(point, number)
            except Crash as crash:
                crashed.append(crash)
                raise

        def write(batch: DataFrame, number: int) -> None:
            pass_by(POINTS[:5], number)
            options = self._target | {"batch": str(number)}
            batch.write.format("onibus").options(**options).mode("append").save()
            pass_by(POINTS[5:6], number)

        try:
            before = checkpoint.last
            patiently(lambda: self._run(checkpoint, write))
            for number in range(before + 1, checkpoint.last + 1):
                self._end_batch(checkpoint, number, pass_by)
        except Crash:
            raise
        except (PySparkException, OnibusError) as error:
            if crashed:
                raise crashed[0] from error
            plain = told_plainly(error)
            raise plain if isinstance(plain, OnibusError) else error from error

    def _end_batch(
        self, checkpoint: Any, number: int, pass_by: Callable[[tuple[str, ...], int], None]
    ) -> None:
        """Pass the points that Spark does not show: a stream is published and not noted."""
        if self._sink == "stream":
            try:
                pass_by(POINTS[:6], number)
            except Crash:
                # A run in mode queue has completed its last claims, after it noted their batch.
                if number == checkpoint.last and self._source["mode"] == "log":
                    checkpoint.commits.discard(number)
                raise
        pass_by(POINTS[6:], number)

    def _run(self, checkpoint: Any, write: Callable[[DataFrame, int], None]) -> None:
        rows = self._spark.readStream.format("onibus").options(**self._source).load()
        writer = rows.writeStream.option("checkpointLocation", str(checkpoint.path))
        if self._sink == "stream":
            writer = writer.format("onibus").options(**self._target)
        else:
            writer = writer.foreachBatch(write)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()


class SparkStory(Story):
    """A story on Spark, with two lakes of its source."""

    def __init__(self, spark: SparkSession, served: ServedBus, seed: int, place: Path) -> None:
        self._spark, self._place = spark, place
        self._stale: set[str] = set()
        super().__init__(served, seed, sinks=("stream", "foreach"))

    def _new(self) -> Any:
        return FolderCheckpoint(Path(tempfile.mkdtemp(dir=self._place)) / "checkpoint")

    def _query(self, producer: str) -> Any:
        known = super()._query(producer)
        source = known.source | {"maxMessagesPerTrigger": "8"}
        target = {**self.served.options, "entity": self.target}
        return SparkQuery(self._spark, self.sink, source, target, producer)

    def tell(self, steps: int) -> None:
        """Do random things, captures too, and look at the result after each."""
        for _ in range(steps):
            name = self.random.choice((*STEPS, "capture", "capture", "capture"))
            self.lines.append(name)
            getattr(self, name)()
        self.back()
        self.lines.append("the end")
        self.run(cut=False)
        self.capture()

    def recreate_source(self) -> None:
        self._stale = {name for name in ("one", "two") if (self._place / name).exists()}
        super().recreate_source()

    def capture(self) -> None:
        """Capture into one of two lakes, and compare it with the log."""
        name = self.random.choice(("one", "two"))
        source = {**self.served.options, "entity": self.source}
        place = str(self._place / name)
        try:
            capture(self._spark, source, place, wait_s=0)
        except (PySparkException, OnibusError) as error:
            self.lines.append(f"  lake {name}: {error}")
            if name not in self._stale:
                raise Wrong(f"the capture has to continue: {error}") from error
            shutil.rmtree(self._place / name)
            self._stale.discard(name)
            return
        if name in self._stale:
            raise Wrong("a lake of an earlier entity was continued")
        lake = Lake(place, self.source)
        start = lake.manifest().tables[MESSAGES].start
        ends = self.client.log_positions(self.source).latest
        wanted = [
            number
            for first, last in zip(start, ends, strict=True)
            for number in range(first, last or 0)
        ]
        found = [
            number
            for one in lake.files(MESSAGES)
            for number in lake.read(one)[1].column(NUMBERS[MESSAGES]).to_pylist()
        ]
        if sorted(found) != wanted:
            raise Wrong(f"lake {name} has {sorted(found)}, not {wanted}")


def tell(spark: SparkSession, served: ServedBus, seed: int) -> None:
    """Tell one story; an error comes with all steps."""
    with tempfile.TemporaryDirectory(prefix="sequence-", ignore_cleanup_errors=True) as place:
        story = SparkStory(spark, served, seed, Path(place))
        try:
            story.tell(STEPS_EACH)
        except Wrong as error:
            error.add_note(f"sequence {seed}:\n" + "\n".join(story.lines))
            raise
        finally:
            story.end()


def main() -> int:
    """Tell as many stories as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="sequences-", ignore_cleanup_errors=True) as scratch:
        use_compiled_modules(Path(scratch) / "spark")
        settings = {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
        spark = spark_session("local[1,3]", **settings)
        with ServedBus() as served:
            for seed in range(given.seed, given.seed + given.sequences):
                try:
                    tell(spark, served, seed)
                except Wrong as error:
                    wrong += 1
                    print(f"seed {seed}: {error}", *error.__notes__, sep="\n", flush=True)
                print(f"{seed - given.seed + 1} sequences, {wrong} wrong", flush=True)
        spark.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
