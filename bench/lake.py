"""A large lake: how fast it is captured, what it is on disk, and how fast programs read it.

    python -m bench.lake --messages 5000000 --folder /data

prints the table of docs/pipeline.md, as Markdown. Each reader runs in its own process and counts
the messages and the bytes of their bodies, so it reads the bodies; Spark is started before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa

from bench.measure import Figure, folder
from onibus.client import Client
from onibus.spark.delta_log import attempt_of
from onibus.spark.delta_schema import schema_string
from onibus.spark.lake import MESSAGES, TABLES, Lake
from onibus.spark.lake_columns import columns_of
from onibus.spark.lake_manifest import TYPED, FileRow, Progress
from onibus.spark.lake_writer import LakeWriter
from tests.client.server_helpers import ServerProcess

MESSAGES_COUNT = 5_000_000
BODY_BYTES = 200
_BATCH = 10_000
QUEUE = "queue"
READERS = ("Spark", "DuckDB", "Polars", "pandas", "pyiceberg")

#: Registrations per average, and the batches at which the two averages begin.
_MEASURED, _FIRST, _LAST = 100, 100, 10_000
#: As a capture merges files.
_MERGE_EACH = 50


def fill(client: Client, count: int) -> None:
    """Send messages with bodies that nothing can compress."""
    client.create_queue(QUEUE, max_size_bytes=count * 2_000)
    for start in range(0, count, _BATCH):
        many = min(_BATCH, count - start)
        bodies = [os.urandom(BODY_BYTES) for _ in range(many)]
        ids = [f"message {at}" for at in range(start, start + many)]
        client.send_arrow(QUEUE, pa.table({"message_id": ids, "body": bodies}))


def run(words: list[str]) -> tuple[str, float, float]:
    """Run a program; return what it prints, its seconds, and its most memory in MB, with Java's."""
    start = time.perf_counter()
    process = psutil.Popen(words, stdout=subprocess.PIPE, text=True)
    ended, most = threading.Event(), [0.0]

    def look() -> None:
        while not ended.wait(0.2):
            with suppress(psutil.NoSuchProcess):
                running = [process, *process.children(recursive=True)]
                most[0] = max(most[0], sum(one.memory_info().rss for one in running))

    looking = threading.Thread(target=look)
    looking.start()
    told = process.stdout.read()
    code = process.wait()
    seconds = time.perf_counter() - start
    ended.set()
    looking.join()
    if code:
        raise SystemExit(f"{words} ended with {code}")
    return told, seconds, most[0] / 1e6


def read(program: str, lake: Path) -> tuple[int, int, float]:
    """Count the messages, and the bytes of their bodies; return both and the seconds."""
    place = str(lake / QUEUE / MESSAGES)
    count = "SELECT count(*), sum(octet_length(body)) FROM messages"
    if program == "Spark":
        from onibus.spark.session import spark_session

        spark = spark_session()
        spark.range(1).collect()
        start = time.perf_counter()
        Lake(str(lake), QUEUE).frame(spark, MESSAGES).createOrReplaceTempView("messages")
        [found] = spark.sql(count).collect()
        seconds = time.perf_counter() - start
        spark.stop()
        return found[0], found[1], seconds
    start = time.perf_counter()
    if program == "DuckDB":
        import duckdb
        from deltalake import DeltaTable

        messages = DeltaTable(place).to_pyarrow_dataset()
        with duckdb.connect() as connection:
            connection.register("messages", messages)
            many, size = connection.sql(count).fetchall()[0]
    elif program == "Polars":
        import polars

        body = polars.col("body")
        rows = polars.scan_delta(place).select(polars.len(), body.bin.size().sum()).collect()
        many, size = rows.row(0)
    elif program == "pandas":
        from deltalake import DeltaTable

        frame = DeltaTable(place).to_pandas(columns=["body"])
        many, size = len(frame), int(frame["body"].str.len().sum())
    else:
        from pyiceberg.catalog import load_catalog

        table = load_catalog("onibus", uri=f"sqlite:///{lake}/iceberg.db").load_table(
            (QUEUE, MESSAGES)
        )
        import pyarrow.compute as pc

        many = size = 0
        for batch in table.scan(selected_fields=("body",)).to_arrow_batch_reader():
            many += batch.num_rows
            size += pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0
    return many, int(size), time.perf_counter() - start


def large(count: int, path: Path) -> list[tuple[str, str, str]]:
    """Fill a queue, capture it, and read the lake; return the rows of the table."""
    lake = path / "lake"
    shown: list[tuple[str, str, str]] = []

    def show(what: str, value: str, memory: str = "") -> None:
        shown.append((what, value, memory))
        print(f"{what}: {value} {memory}", file=sys.stderr, flush=True)

    with ServerProcess(path / "data") as server:
        with Client.connect(server.connection_string) as client:
            start = time.perf_counter()
            fill(client, count)
            show("send", f"{count / (time.perf_counter() - start):,.0f} messages/s")
        connect = ["--connect", server.connection_string]
        command = [sys.executable, "-m", "onibus", "pipeline"]
        capture = [*command, "capture", QUEUE, "--lake", str(lake), "--table", "iceberg"]
        _, seconds, memory = run([*capture, *connect])
        show("capture", f"{count / seconds:,.0f} messages/s, {seconds:,.0f} s", f"{memory:,.0f} MB")
        rows = Lake(str(lake), QUEUE).files(MESSAGES)
        total = sum(one.row.size for one in rows)
        sizes = f"{total / 1e6:,.0f} MB, {total / count:,.0f} bytes a message"
        show("files of messages", f"{len(rows)}, {sizes}")
        audit = [*command, "audit", QUEUE, "--lake", str(lake), *connect]
        told, seconds, memory = run(audit)
        assert "PASSED" in told, told
        show("audit", f"{seconds:,.0f} s", f"{memory:,.0f} MB")
    for program in READERS:
        words = [sys.executable, "-m", "bench.lake", "--read", program, "--folder", str(path)]
        told, _, memory = run(words)
        many, size, seconds = json.loads(told.splitlines()[-1])
        assert (many, size) == (count, count * BODY_BYTES), (program, many, size)
        show(f"read with {program}", f"{seconds:,.1f} s", f"{memory:,.0f} MB")
    return shown


def registration() -> Figure:
    """Return how much slower the registration of batch 10,000 is than that of batch 100."""
    with folder() as path:
        lake = Lake(str(path), QUEUE)
        times = {_FIRST: 0.0, _LAST: 0.0}
        with LakeWriter(lake) as writer:
            progress = Progress([0], [0])
            writer.commit(layout=TYPED, tables={MESSAGES: progress})
            columns = schema_string(columns_of(MESSAGES))
            for table in TABLES:
                writer.register(table, "CREATE TABLE", [], columns=columns)
            for batch in range(1, _LAST + _MEASURED):
                new = _row(batch * _BATCH, (batch + 1) * _BATCH - 1)
                reached = {f"{writer.token}-0": new.last}
                start = time.perf_counter()
                writer.register(MESSAGES, "WRITE", [new], reached=reached)
                seconds = time.perf_counter() - start
                for at in times:
                    times[at] += seconds / _MEASURED if 0 <= batch - at < _MEASURED else 0
                if batch % _MERGE_EACH == 0:
                    small = writer.logs[MESSAGES].files()[-_MERGE_EACH:]
                    whole = _row(small[0].first, small[-1].last)
                    writer.register(MESSAGES, "OPTIMIZE", [whole], small, same_rows=True)
    note = f"{1_000 * times[_LAST]:.1f} ms after {1_000 * times[_FIRST]:.1f}, checkpoints included"
    ratio = times[_LAST] / times[_FIRST]
    return Figure("registration of batch 10,000 over batch 100", ratio, 2, "×", True, note)


def _row(first: int, last: int) -> FileRow:
    attempt = attempt_of(f"{first:032x}")
    stats = json.dumps({"numRecords": last - first + 1})
    return FileRow("2026-05-01", 0, first, last, last - first + 1, 1, "", attempt, stats)


def measure() -> list[Figure]:
    """Return the figures of a lake that have a target."""
    return [registration()]


def main() -> None:
    """Measure a large lake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES_COUNT)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--read", choices=READERS)
    given = parser.parse_args()
    if given.read is not None:
        print(json.dumps(read(given.read, given.folder / "lake")))
        return
    if given.folder is not None:
        os.environ["BENCH_DIRECTORY"] = str(given.folder)
    with folder() as path:
        shown = large(given.messages, path)
    print("| step | result | memory |\n| --- | --- | --- |")
    for row in shown:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
