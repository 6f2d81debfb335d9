"""Batch reads of the log, of outcomes and of the present."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from onibus import Message
from onibus.client import Client
from tests.spark.reading import Reads, fill


@pytest.mark.promise("R3")
def test_positions_splitting_and_filters(client: Client, entity: str, reads: Reads) -> None:
    client.create_queue(entity, enable_partitioning=True, retention_ms=3_600_000)
    fill(client, entity, 1_000, partition_key=[f"k{at}" for at in range(1_000)])
    ends = client.log_positions(entity)
    heads = [
        (latest or 0) - (first or 0)
        for first, latest in zip(ends.earliest, ends.latest, strict=True)
    ]
    assert sum(heads) == 1_000

    whole = reads.read(messagesPerTask=40)
    assert whole.rdd.getNumPartitions() > 16, "ranges are split"
    rows = whole.collect()
    assert sorted(int(row.body) for row in rows) == list(range(1_000))
    assert {(row.partition, row.sequence_number >> 48) for row in rows} == {
        (index, index) for index in range(16)
    }

    index, count = max(enumerate(heads), key=lambda one: one[1])
    first = (index << 48) + 1
    part = reads.read(
        startingPosition=json.dumps({str(index): first + 3}),
        endingPosition=json.dumps({str(p): (p << 48) + 1 for p in range(16) if p != index}),
    )
    assert [row.sequence_number for row in part.collect()] == list(range(first + 3, first + count))

    near = whole.where((F.col("partition") == index) & (F.col("sequence_number") < first + 5))
    assert near.count() == 5
    assert near.rdd.getNumPartitions() == 1, "what no filter lets pass is not read"
    stamps = sorted(row.enqueued_time for row in rows)
    none = whole.where(F.col("enqueued_time") > F.lit(stamps[-1]))
    assert none.rdd.getNumPartitions() == 1, "Spark reads once at least"
    assert none.count() == 0
    early = whole.where(F.col("enqueued_time") <= F.lit(stamps[-1]))
    assert early.rdd.getNumPartitions() == whole.rdd.getNumPartitions()
    assert reads.read(startingPosition="2999-01-01T00:00:00Z").count() == 0
    assert reads.read(endingPosition="1999-01-01", pushdown="false").count() == 0


def test_columns_and_bodies(client: Client, entity: str, reads: Reads) -> None:
    client.create_queue(entity)
    bodies = [b'{"name": "apple", "count": 3}', b'{"name": "pear", "more": 1}', b"no json \xff"]
    client.send_batch(entity, [Message(body=body) for body in bodies])

    assert reads.read(columns="body, sequence_number").columns == ["body", "sequence_number"]
    schema = "name STRING, count INT"
    two = reads.read(columns="body", bodyFormat="json", bodySchema=schema, endingPosition='{"0":3}')
    assert [row.body.asDict() for row in two.collect()] == [
        {"name": "apple", "count": 3},
        {"name": "pear", "count": None},
    ]
    for how in ({"bodyFormat": "text"}, {"bodyFormat": "json", "bodySchema": schema}):
        with pytest.raises(PySparkException, match="the body of message 3 is no"):
            reads.read(columns="body", **how).collect()
        kept = reads.read(columns="body", failOnBadBody="false", **how).collect()
        assert [row.body is None for row in kept] == [False, False, True]

    view = f"view_{entity.replace('-', '_')}"
    given = ", ".join(f"{name} '{value}'" for name, value in reads.options.items())
    reads.session.sql(f"CREATE TEMPORARY VIEW {view} USING onibus OPTIONS ({given})")
    counted = reads.session.sql(f"SELECT count(*) AS n FROM {view} WHERE sequence_number > 1")
    assert counted.first()["n"] == 2  # type: ignore[index]
    reads.session.catalog.dropTempView(view)


@pytest.mark.promise("R4")
def test_outcomes_and_the_present(client: Client, entity: str, reads: Reads) -> None:
    client.create_queue(entity, retention_ms=3_600_000)
    fill(client, entity, 6)
    receiver = client.receiver(entity)
    done, dead, aside, again = receiver.receive(4)
    receiver.complete(done)
    receiver.dead_letter(dead, reason="spoiled")
    receiver.defer(aside)
    receiver.abandon(again)

    outcomes = reads.read(table="outcomes").collect()
    assert [(row.number, row.partition, row.sequence_number, row.outcome) for row in outcomes] == [
        (1, 0, 1, "completed"),
        (2, 0, 2, "dead-lettered"),
    ]
    assert outcomes[1].reason == "spoiled"
    present = reads.read(table="present").orderBy("sequence_number").collect()
    assert [(row.sequence_number, row.state, row.delivery_count) for row in present] == [
        (2, "dead-lettered", 0),
        (3, "deferred", 1),
        (4, "active", 1),
        (5, "active", 0),
        (6, "active", 0),
    ]
    assert present[0].dead_letter_reason == "spoiled"


@pytest.mark.promise("R3")
def test_a_gap_is_loud_unless_told_otherwise(client: Client, entity: str, reads: Reads) -> None:
    client.create_queue(entity)
    fill(client, entity, 5)
    client.receiver(entity, delete=True).receive(5)
    fill(client, entity, 3)
    assert client.log_positions(entity).earliest == (6,)

    assert [row.sequence_number for row in reads.read().collect()] == [6, 7, 8]
    old = {"startingPosition": '{"0": 2}'}
    with pytest.raises(
        PySparkException, match="partition 0: messages 2 to 5 are no longer retained"
    ):
        reads.read(**old).collect()
    kept = reads.read(**old, failOnGap="false").collect()
    assert [row.sequence_number for row in kept] == [6, 7, 8]


def test_what_is_wrong_is_said(client: Client, entity: str, reads: Reads) -> None:
    client.create_queue(entity)
    for options, said in (
        ({"startingPositon": "latest"}, "did you mean startingPosition"),
        ({"startingPosition": '{"0": 99}'}, "99 is past the end of partition 0"),
        ({"mode": "queue"}, "mode queue is only for streams"),
    ):
        with pytest.raises(PySparkException, match=said):
            reads.read(**options).collect()
    reads.options["entity"] = "nowhere"
    with pytest.raises(PySparkException, match="nowhere"):
        reads.read().collect()
