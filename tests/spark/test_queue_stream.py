"""Streaming reads of a queue: claims that are committed once Spark has noted their batch."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from onibus.client import Client
from onibus.spark.queue_stream import finish_claims
from tests.client.server_helpers import ServerProcess
from tests.server.processes import wait_for
from tests.spark.reading import Reads, fill


@pytest.mark.promise("R5", "R7")
def test_every_message_goes_to_one_consumer(
    client: Client, server: ServerProcess, entity: str, reads: Reads, tmp_path: Path
) -> None:
    client.create_queue(entity, enable_partitioning=True)
    fill(client, entity, 600, partition_key=[f"k{at % 5}" for at in range(600)])
    received: list[int] = []
    claimed: list[int] = []
    stop = threading.Event()

    def consume() -> None:
        with Client.connect(server.connection_string) as mine, mine.receiver(entity) as receiver:
            while not stop.is_set():
                for message in receiver.receive(2, wait_ms=20):
                    received.append(int(message.body))
                    receiver.complete(message)
                stop.wait(0.05)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        rows = reads.stream(mode="queue", reader="lake", maxMessagesPerTrigger=100)
        reads.run(rows, tmp_path, lambda batch: claimed.extend(int(row.body) for row in batch))
    finally:
        stop.set()
        consumer.join()
    assert client.claims(entity) == [], "the last batch is committed too"
    left = [int(message.body) for message in client.peek_all(entity)]
    assert sorted(received + claimed + left) == list(range(600))
    assert received, "both got some"
    assert len(claimed) > 100, "both got some"


@pytest.mark.promise("R5", "R7", "R8")
def test_a_batch_that_failed_gets_the_same_messages(
    client: Client, entity: str, reads: Reads, tmp_path: Path
) -> None:
    client.create_queue(entity, requires_session=True)
    fill(client, entity, 40, session_id=[f"s{at % 4}" for at in range(40)])
    rows = reads.stream(mode="queue", reader="lake", maxMessagesPerTrigger=10)
    seen: list[list[Row]] = []

    def fail_once(batch: list[Row]) -> None:
        seen.append(batch)
        if len(seen) == 1:
            raise ValueError("the lake is closed")

    with pytest.raises(PySparkException, match="the lake is closed"):
        reads.run(rows, tmp_path, fail_once)
    [left] = client.claims(entity)
    assert (left.reader, left.count, left.read) == ("lake", 10, True), "a lost query's claim"

    # Another one, of a run that ended before Spark had noted it.
    orphan = client.claim(entity, "lake", 10)
    assert orphan is not None
    reads.run(rows, tmp_path, fail_once)
    assert seen[1] == seen[0], "same offset, same messages"
    found = [int(row.body) for batch in seen[1:] for row in batch]
    assert sorted(found) == list(range(40)), "the orphan's are among them, each once"
    for session in range(4):
        mine = [body for body in found if body % 4 == session]
        assert mine == sorted(mine), "order inside a session"
    assert client.claims(entity) == []
    assert client.queue(entity).active_count == 0


@pytest.mark.promise("R5")
def test_claims_that_are_gone_and_claims_that_are_finished(
    client: Client, entity: str, reads: Reads, tmp_path: Path
) -> None:
    client.create_queue(entity)
    fill(client, entity, 5)
    options = {"mode": "queue", "reader": "lake"}
    rows = reads.stream(**options)

    def fail(_: list[Row]) -> None:
        raise ValueError("not today")

    with pytest.raises(PySparkException, match="not today"):
        reads.run(rows, tmp_path / "one", fail)
    [claim] = client.claims(entity)
    client.release_claim(entity, "lake", claim.number)
    with pytest.raises(PySparkException, match=f"claim {claim.number} of reader 'lake' of .*gone"):
        reads.run(rows, tmp_path / "one")
    kept: list[Row] = []
    reads.run(reads.stream(**options, failOnGap="false"), tmp_path / "one", kept.extend)
    assert sorted(int(row.body) for row in kept) == [0, 1, 2, 3, 4], "the next batch has them"

    fill(client, entity, 3)

    def take(batch: DataFrame, _: int) -> None:
        assert batch.count() == 3

    query = (
        rows.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "two"))
        .trigger(processingTime="1 hour")
        .start()
    )
    wait_for(lambda: query.lastProgress is not None)
    query.stop()
    assert len(client.claims(entity)) == 1, "nobody asked for a batch after it"
    assert finish_claims(query, {**reads.options, **options}) == 1
    assert client.claims(entity) == []
    assert client.queue(entity).active_count == 0
