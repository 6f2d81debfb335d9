"""Streaming reads of a queue: claims that are committed once Spark has noted their batch."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from onibus.client import Client
from onibus.spark.queue_stream import finish_claims
from tests.client.server_helpers import ServerProcess
from tests.spark.reading import PATIENCE_S, Reads, fill, run_a_batch


class Consumer(threading.Thread):
    """Takes a few messages from a queue, and more once Spark has begun to take some."""

    def __init__(self, work: Callable[[Consumer], None]) -> None:
        super().__init__()
        self._work = work
        self.bodies: list[int] = []
        self.some, self.go_on, self.stop = (threading.Event() for _ in range(3))

    def run(self) -> None:
        self._work(self)

    def took(self, *bodies: bytes) -> bool:
        """Note what was taken; tell whether to take more, and when."""
        self.bodies += map(int, bodies)
        if self.bodies:
            self.some.set()
            self.go_on.wait(PATIENCE_S)
        return not self.stop.wait(0.02)


def over_http(server: ServerProcess, entity: str, mine: Consumer) -> None:
    with Client.connect(server.connection_string) as client, client.receiver(entity) as receiver:
        going = True
        while going:
            held = receiver.receive(2, wait_ms=100)
            for message in held:
                receiver.complete(message)
            going = mine.took(*[message.body for message in held])


def over_amqp(server: ServerProcess, entity: str, mine: Consumer) -> None:
    with (
        ServiceBusClient.from_connection_string(server.service_bus) as azure,
        azure.get_queue_receiver(entity) as receiver,
    ):
        going = True
        while going:
            held = receiver.receive_messages(2, max_wait_time=1)
            for message in held:
                receiver.complete_message(message)
            going = mine.took(*[b"".join(message.body) for message in held])


@pytest.mark.promise("R5", "R7")
def test_every_message_goes_to_one_consumer(
    client: Client, server: ServerProcess, entity: str, reads: Reads, tmp_path: Path
) -> None:
    client.create_queue(entity, enable_partitioning=True)
    fill(client, entity, 600, partition_key=[f"k{at % 5}" for at in range(600)])
    claimed: list[int] = []
    consumers = [Consumer(partial(work, server, entity)) for work in (over_http, over_amqp)]

    def seen(batch: list[Row]) -> None:
        claimed.extend(int(row.body) for row in batch)
        for one in consumers:
            one.go_on.set()

    for one in consumers:
        one.start()
    try:
        for one in consumers:
            assert one.some.wait(PATIENCE_S)
        rows = reads.stream(mode="queue", reader="lake", maxMessagesPerTrigger=100)
        reads.run(rows, tmp_path, seen)
    finally:
        for one in consumers:
            one.stop.set()
            one.go_on.set()
            one.join()
    assert client.claims(entity) == [], "the last batch is committed too"
    received = [body for one in consumers for body in one.bodies]
    assert all(one.bodies for one in consumers), "each got some"
    assert len(claimed) >= 100, "and so did Spark"
    left = [int(message.body) for message in client.peek_all(entity)]
    assert sorted(received + claimed + left) == list(range(600))


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

    query = run_a_batch(
        lambda: (
            rows.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "two"))
            .trigger(processingTime="1 hour")
            .start()
        )
    )
    assert len(client.claims(entity)) == 1, "nobody asked for a batch after it"
    assert finish_claims(query, {**reads.options, **options}) == 1
    assert client.claims(entity) == []
    assert client.queue(entity).active_count == 0


@pytest.mark.promise("R5", "R7")
def test_a_copy_of_a_checkpoint_without_a_batch_says_so(
    client: Client, entity: str, reads: Reads, tmp_path: Path
) -> None:
    client.create_queue(entity)
    rows = reads.stream(mode="queue", reader="lake")
    checkpoint, copy = tmp_path / "checkpoint", tmp_path / "copy"
    seen: list[int] = []

    def take(batch: list[Row]) -> None:
        seen.extend(int(row.body) for row in batch)

    reads.run(rows, checkpoint, take)
    shutil.copytree(checkpoint, copy)
    fill(client, entity, 3)
    reads.run(rows, checkpoint, take)
    reads.run(rows, checkpoint, take)
    assert seen == [0, 1, 2]
    fill(client, entity, 1)
    with pytest.raises(PySparkException, match="its checkpoint has no batch: it is an older copy"):
        reads.run(rows, copy, take)
    assert seen == [0, 1, 2]
    # The newest checkpoint continues, and so does a new one.
    reads.run(rows, checkpoint, take)
    assert seen == [0, 1, 2, 0]
    fill(client, entity, 2)
    reads.run(rows, tmp_path / "new", take)
    assert seen == [0, 1, 2, 0, 0, 1]
