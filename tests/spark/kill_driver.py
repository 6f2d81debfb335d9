"""A driver with four queries and a capture, until `kill_spark` kills it.

    python -m tests.spark.kill_driver MASTER CONNECTION PLACE

A number in the file `ask` asks it to process all rows and to audit the lake. Its answer is in the
file `answer`: this number and the verdict.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onibus.core.errors import OnibusError
from onibus.spark.jobs.audit import audit
from onibus.spark.jobs.capture import capture
from onibus.spark.session import spark_session

#: Each reader with each writer.
PAIRS = [(mode, sink) for mode in ("log", "queue") for sink in ("stream", "foreach")]
ASK, ANSWER = "ask", "answer"
#: The queue that is captured: its messages end, so that the lake has outcomes too.
CAPTURED, LAKE = ("queue", "stream"), "lake"


def name_of(mode: str, sink: str, end: str) -> str:
    """Return the name of the queue at one end of a query."""
    return f"{mode}-{sink}-{end}"


def start(
    spark: SparkSession, connection: str, place: Path, mode: str, sink: str
) -> StreamingQuery:
    """Start a query from one queue to another."""
    rows = (
        spark.readStream.format("onibus")
        .options(connection=connection, entity=name_of(mode, sink, "in"), mode=mode, reader="kill")
        .option("maxMessagesPerTrigger", 500)
        .option("columns", "message_id,body")
        .load()
    )
    target = {
        "connection": connection,
        "entity": name_of(mode, sink, "out"),
        "producer": "kill",
        "retrySeconds": "60",
    }
    writer = rows.writeStream.option("checkpointLocation", str(place / f"state-{mode}-{sink}"))
    if sink == "stream":
        return writer.format("onibus").options(**target).start()

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("onibus").options(**target, batch=number).mode("append").save()

    return writer.foreachBatch(write).start()


class Capture(threading.Thread):
    """Captures a queue into a lake, again and again: each run takes the lake over."""

    def __init__(self, spark: SparkSession, connection: str, place: Path) -> None:
        super().__init__(daemon=True)
        self._spark, self._lake = spark, str(place / LAKE)
        self._source = {"connection": connection, "entity": name_of(*CAPTURED, "in")}
        self._turn = threading.Lock()

    def run(self) -> None:
        while True:
            time.sleep(2)
            with self._turn:
                self.once()

    def once(self) -> bool:
        """Capture what there is; return whether it succeeded."""
        try:
            capture(self._spark, self._source, self._lake)
        except (PySparkException, OnibusError, OSError) as error:
            note(CAPTURED, lambda error=error: f"capture: {error}")  # type: ignore[misc]
            return False
        return True

    def finish(self) -> str:
        """Capture the rest, and return the verdict of an audit of the lake."""
        with self._turn:
            while not self.once():
                time.sleep(1)
            verdict = audit(lambda: self._spark, self._source, self._lake, max_lag_s=0)
        note(CAPTURED, lambda: verdict)
        return "PASSED" if verdict.passed else f"FAILED: {verdict}"


def main(master: str, connection: str, folder: str) -> None:
    """Run the queries, each again if it fails, and finish all rows for each number in `ask`."""
    place = Path(folder)
    settings = {
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.task.maxFailures": "4",
    }
    spark = spark_session(master, **settings)
    lake = Capture(spark, connection, place)
    lake.start()
    queries: dict[tuple[str, str], StreamingQuery] = {}
    answered = read_if_there(place / ANSWER).partition(" ")[0]
    while True:
        for pair in PAIRS:
            query = queries.get(pair)
            if query is None or not query.isActive:
                note(pair, lambda query=query: query and query.exception())  # type: ignore[misc]
                with suppressed(pair):
                    queries[pair] = start(spark, connection, place, *pair)
                    wait_for_start(queries[pair])
        asked = read_if_there(place / ASK)
        if asked != answered:
            for pair in PAIRS:
                queries[pair] = finish(spark, connection, place, pair, queries.get(pair))
            write_whole(place / ANSWER, f"{asked} {lake.finish()}")
            answered = asked
        time.sleep(0.5)


def read_if_there(path: Path) -> str:
    """Return what a file says; nothing if it does not exist."""
    return path.read_text() if path.exists() else ""


def write_whole(path: Path, text: str) -> None:
    """Write a file that its reader never sees in part."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


@contextmanager
def suppressed(pair: tuple[str, str]) -> Iterator[None]:
    """Log an error of Spark: a busy machine may be too slow for its processes, so try again."""
    try:
        yield
    except PySparkException as error:
        note(pair, lambda error=error: error)  # type: ignore[misc]


def wait_for_start(query: StreamingQuery) -> None:
    """Wait until a query has its Python process: several at once take longer than Spark waits."""
    while query.isActive and "Initializing" in query.status["message"]:
        time.sleep(0.5)


def note(pair: tuple[str, str], why: Callable[[], object]) -> None:
    """Log why a query has ended."""
    print(time.strftime("%H:%M:%S"), pair, str(why())[-3000:], flush=True)


def finish(
    spark: SparkSession,
    connection: str,
    place: Path,
    pair: tuple[str, str],
    query: StreamingQuery | None,
) -> StreamingQuery:
    """Wait until a query has done all that there is; start it again if it fails."""
    while True:
        with suppressed(pair):
            query = query or start(spark, connection, place, *pair)
            query.processAllAvailable()
            if query.isActive:
                return query
        query = None


if __name__ == "__main__":
    main(*sys.argv[1:])
