"""What a query meets when the bus changes under it: an error that names it, and nothing halfway."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onibus.client import Client, Retry
from onibus.core.errors import PartitionOffline, Unknown
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from tests.bus_helpers import KEYS
from tests.client.server_helpers import ServerProcess, development_string
from tests.over_http.on_disk import Place
from tests.over_http.test_lost_store import Disk
from tests.spark.faults import BEFORE, PUBLISH, Fault, FaultyProxy
from tests.spark.reading import PATIENCE_S, Reads, fill, run_to_the_end
from tests.spark.writing_helpers import log_of, write


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.promise("R3", "R8")
@pytest.mark.parametrize("again", [False, True])
def test_an_entity_is_deleted_or_made_again_in_the_middle_of_a_batch(
    client: Client, entity: str, reads: Reads, tmp_path: Path, again: bool
) -> None:
    client.create_queue(entity)
    fill(client, entity, 20)
    taken: list[Row] = []

    def take(batch: DataFrame, number: int) -> None:
        # Planned, and not read yet.
        if number == 1:
            client.delete_queue(entity)
            if again:
                client.create_queue(entity)
                fill(client, entity, 20)
        taken.extend(batch.collect())

    def start() -> StreamingQuery:
        return (
            reads.stream(maxMessagesPerTrigger=10)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path))
            .trigger(processingTime="0 seconds")
            .start()
        )

    says = "recreated" if again else f"no entity '{entity}'"
    with pytest.raises(PySparkException, match=says):
        run_to_the_end(start)
    assert [int(row.body) for row in taken] == list(range(10)), "the batch before, and no more"


@pytest.mark.promise("R6", "R8")
@pytest.mark.parametrize("again", [False, True])
def test_an_entity_is_deleted_or_made_again_under_a_write(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str, again: bool
) -> None:
    client.create_queue(entity)
    rows = spark.createDataFrame(
        [(f"m{n}", b"x") for n in range(10)], "message_id STRING, body BINARY"
    )

    def change() -> None:
        client.delete_queue(entity)
        if again:
            client.create_queue(entity)

    with FaultyProxy(server, [Fault(PUBLISH, BEFORE, "entity")], entity=change) as proxy:
        with pytest.raises(PySparkException, match=entity):
            write(rows, proxy.connection_string, entity)
        assert proxy.left == 0
    if again:
        assert log_of(client, entity, "body") == []
        assert client.staged(entity) == []


@pytest.mark.promise("R2")
def test_retention_has_passed_a_reader_that_stood_still(
    client: Client, entity: str, reads: Reads, tmp_path: Path
) -> None:
    client.create_queue(entity, reader_bytes_max=2_500)
    fill(client, entity, 5)
    rows = reads.stream(reader="lake", columns="sequence_number")
    reads.run(rows, tmp_path)
    for _ in range(5):
        fill(client, entity, 1, body=[bytes(1_000)])
        client.receiver(entity, delete=True).receive(10)
    wait_until(lambda: (client.log_positions(entity).earliest[0] or 0) > 6)
    fill(client, entity, 1)
    [reader] = client.readers(entity)
    assert reader.positions == (6,)
    with pytest.raises(
        PySparkException, match=r"partition 0: messages 6 to \d+ are no longer retained"
    ):
        reads.run(rows, tmp_path)
    found: list[Row] = []
    passing = reads.stream(reader="lake", columns="sequence_number", failOnGap="false")
    reads.run(passing, tmp_path, found.extend)
    assert found[-1].sequence_number == 11
    assert client.readers(entity)[0].lag == (0,)


@pytest.mark.promise("P2", "P5", "R3")
def test_a_partition_is_offline_and_comes_back_over_tls(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    disk = Disk(place.stores["b"], mounted=False)
    with place.serve("--tls") as server:
        options = {"url": f"https://localhost:{place.port}", "keyName": ROOT_NAME}
        options |= {"key": DEVELOPMENT_KEY, "entity": "q", "columns": "partition,body"}
        trust = {"certificate": server.ready["certificate"]}
        reads = Reads(spark, development_string(place.port), "q")
        reads.options = options | trust
        found: list[Row] = []
        rows = reads.stream()
        with Client.connect(development_string(place.port), retry=Retry(attempts=1)) as client:
            client.create_queue("q", enable_partitioning=True)
            fill(client, "q", 16, partition_key=list(KEYS))
            with pytest.raises(PySparkException, match=r"(?i)certificate"):
                spark.read.format("onibus").options(**options).load().collect()
            reads.run(rows, tmp_path / "checkpoint", found.extend)
            assert sorted(row.partition for row in found) == list(range(16))

            fill(client, "q", 16, partition_key=list(KEYS))
            disk.take_away()
            wait_until(lambda: bool(offline(client)))
            down = set(client.queue("q").offline_partitions)
            found.clear()
            reads.run(rows, tmp_path / "checkpoint", found.extend)
            assert {row.partition for row in found} == set(range(16)) - down
            with pytest.raises(PySparkException, match="is offline"):
                reads.read().collect()

            disk.give_back()
            wait_until(lambda: client.queue("q").availability == "available")
            reads.run(rows, tmp_path / "checkpoint", found.extend)
            ends = client.log_positions("q")
            bounds = zip(ends.earliest, ends.latest, strict=True)
            there = sum((last or 0) - (first or 0) for first, last in bounds)
    assert len(found) == there - 16, "each once"


def offline(client: Client) -> tuple[int, ...]:
    """Return which partitions are down. That files are gone is seen after a commit."""
    for key in KEYS:
        try:
            fill(client, "q", 1, partition_key=[key])
        except (PartitionOffline, Unknown):
            continue
    return client.queue("q").offline_partitions
