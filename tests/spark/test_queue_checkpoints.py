"""One reader of a queue is for one query and its newest checkpoint; anything else is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from onibus.client import Client
from onibus.core.errors import CheckpointMismatch, ClaimNotFound, Failed
from onibus.spark.options import read_options
from onibus.spark.queue_stream import QueueStreamReader
from tests.client.server_helpers import ServerProcess
from tests.spark.micro_batches import Query, new_checkpoint
from tests.spark.reading import fill

Offset = dict[str, Any]


Begin = Callable[..., "Run"]


@pytest.fixture
def run(server: ServerProcess, entity: str) -> Iterator[Begin]:
    """Begins runs of queries, and ends them."""
    begun: list[Run] = []

    def begin(**more: str) -> Run:
        begun.append(Run(server, entity, **more))
        return begun[-1]

    yield begin
    for one in begun:
        one.reader.stop()


class Run:
    """One run of a query, as Spark calls its reader; without Spark."""

    def __init__(self, server: ServerProcess, entity: str, **more: str) -> None:
        given = {"connection": server.connection_string, "entity": entity, "mode": "queue"}
        given |= {"reader": "lake", "maxMessagesPerTrigger": "2", "columns": "body"}
        schema = StructType([StructField("body", BinaryType())])
        self.reader = QueueStreamReader(read_options(given | more), schema)

    def plan(self, start: Offset | None = None) -> Offset:
        before = self.reader.initialOffset() if start is None else start
        return self.reader.latestOffset(before, self.reader.getDefaultReadLimit())

    def read(self, end: Offset) -> list[int]:
        parts = self.reader.partitions({}, end)
        rows = [row for part in parts for batch in self.reader.read(part) for row in batch["body"]]
        return sorted(int(row.as_py()) for row in rows)


@pytest.mark.promise("R5", "R7")
def test_two_queries_under_one_reader(run: Begin, client: Client, entity: str) -> None:
    client.create_queue(entity)
    fill(client, entity, 6)
    one, two = run(), run()
    first = one.plan()
    # The second finds a claim that was not read, as after a crash, and takes it over.
    second = two.plan()
    assert second["claims"] == first["claims"]
    with pytest.raises(CheckpointMismatch, match="another query has taken over"):
        one.read(first)
    assert two.read(second) == [0, 1]
    # A claim belongs to the query that read it.
    with pytest.raises(CheckpointMismatch, match=r"has read claim 1, .*its own reader"):
        run().plan()
    again = run()
    assert again.read(second) == [0, 1], "a run of the same checkpoint"
    third = again.plan(second)
    assert again.read(third) == [2, 3]
    # A copy of the checkpoint next to the original.
    with pytest.raises(CheckpointMismatch, match="the checkpoint is not the newest"):
        run().plan(second)
    with pytest.raises(CheckpointMismatch, match="another query has taken over"):
        two.reader._claim(second, [])
    fourth = again.plan(third)
    assert again.read(fourth) == [4, 5]
    assert again.plan(fourth) == fourth
    # Nothing is open: a new query may have the name.
    assert run().reader.latestOffset(one.reader.initialOffset(), ReadAllAvailable())


@pytest.mark.promise("R5")
def test_an_older_copy_of_a_checkpoint_says_so(run: Begin, client: Client, entity: str) -> None:
    client.create_queue(entity)
    fill(client, entity, 10)
    original = run()
    ends = [original.plan()]
    for _ in range(2):
        original.read(ends[-1])
        ends.append(original.plan(ends[-1]))
    original.read(ends[-1])
    original.plan(ends[-1])
    before = client.claims(entity)
    with pytest.raises(CheckpointMismatch, match=r"at claim 1 .*claims up to 3 were completed"):
        run().plan(ends[0])
    with pytest.raises(ClaimNotFound, match="was completed after this checkpoint was copied"):
        run().read(ends[1])
    with pytest.raises(Failed, match="restored from an older backup"):
        run().plan(ends[0] | {"claim": 99})
    assert [one.number for one in client.claims(entity)] == [one.number for one in before]
    # On purpose.
    passing = run(failOnGap="false")
    assert passing.read(passing.plan(ends[0])) == [6, 7]


def test_an_offset_of_an_earlier_version_continues(run: Begin, client: Client, entity: str) -> None:
    client.create_queue(entity)
    fill(client, entity, 4)
    original = run()
    end = original.plan()
    del end["token"]
    assert original.read(end) == [0, 1]
    following = run().plan(end)
    assert run().read(following) == [2, 3]


@pytest.mark.promise("R5")
def test_a_query_of_an_earlier_version_is_bound_at_its_next_start(
    client: Client, server: ServerProcess, entity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_queue(entity)
    source = {"connection": server.connection_string, "entity": entity, "mode": "queue"}
    source |= {"reader": "lake", "columns": "message_id,body"}
    query = Query("queue", "files", source, {}, "")
    checkpoint = new_checkpoint(Random(1).randrange)
    empty = checkpoint.copy()
    fill(client, entity, 2)
    with monkeypatch.context() as earlier:
        earlier.setattr(QueueStreamReader, "_begin", lambda *given: None)
        query.run(checkpoint)
    fill(client, entity, 2)
    query.run(checkpoint)
    fill(client, entity, 2)
    # The checkpoint without its batches: the messages of both are no longer in the queue.
    with pytest.raises(CheckpointMismatch, match="has read claims of reader 'lake'"):
        query.run(empty)
