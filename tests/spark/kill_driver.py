"""A driver with four queries and a capture, until a file says stop; `kill_spark` kills it.

python -m tests.spark.kill_driver MASTER CONNECTION PLACE
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
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
STOP = "stop"
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
        .option("maxMessagesPerTrigger", 200)
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
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(1):
            self.once()

    def once(self) -> bool:
        """Capture what there is; return whether it succeeded."""
        try:
            capture(self._spark, self._source, self._lake)
        except (PySparkException, OnibusError, OSError) as error:
            note(CAPTURED, lambda error=error: f"capture: {error}")  # type: ignore[misc]
            return False
        return True

    def finish(self) -> None:
        """Capture the rest, and have the lake audited: it is complete and right."""
        self.stopped.set()
        self.join()
        while not self.once():
            time.sleep(1)
        verdict = audit(lambda: self._spark, self._source, self._lake, max_lag_s=0)
        note(CAPTURED, lambda: verdict)
        assert verdict.passed, verdict


def main(master: str, connection: str, folder: str) -> None:
    """Run the queries, each again if it fails, until the file exists; then finish all rows."""
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
    while not (place / STOP).exists():
        for pair in PAIRS:
            query = queries.get(pair)
            if query is None or not query.isActive:
                note(pair, lambda query=query: query and query.exception())  # type: ignore[misc]
                queries[pair] = start(spark, connection, place, *pair)
                wait_for_start(queries[pair])
        time.sleep(0.5)
    for pair in PAIRS:
        # A driver that was killed last starts when the file exists.
        query = queries.get(pair) or start(spark, connection, place, *pair)
        queries[pair] = finish(spark, connection, place, pair, query)
    for query in queries.values():
        query.stop()
    lake.finish()
    spark.stop()


def wait_for_start(query: StreamingQuery) -> None:
    """Wait until a query has its Python process: several at once take longer than Spark waits."""
    while query.isActive and "Initializing" in query.status["message"]:
        time.sleep(0.5)


def note(pair: tuple[str, str], why: Callable[[], object]) -> None:
    """Log why a query has ended."""
    print(time.strftime("%H:%M:%S"), pair, str(why())[-3000:], flush=True)


def finish(
    spark: SparkSession, connection: str, place: Path, pair: tuple[str, str], query: StreamingQuery
) -> StreamingQuery:
    """Wait until a query has done all that there is; start it again if it fails."""
    while True:
        try:
            query.processAllAvailable()
        except PySparkException as error:
            note(pair, lambda error=error: error)  # type: ignore[misc]
        else:
            if query.isActive:
                return query
        query = start(spark, connection, place, *pair)


if __name__ == "__main__":
    main(*sys.argv[1:])
