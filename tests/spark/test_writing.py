"""Rows become messages: what columns mean, where rows go, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from onibus import Message
from onibus.client import Client
from onibus.core.errors import InvalidArgument
from onibus.security.keys import DEVELOPMENT_KEY
from onibus.spark.shaping import by_partition, with_message_ids
from tests.client.server_helpers import ServerProcess
from tests.spark.writing_helpers import log_of, put_rows, rows_stream, write, write_stream

COLUMNS = ("message_id", "body")


@pytest.mark.promise("R6")
def test_columns_become_the_fields_of_messages(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str
) -> None:
    client.create_queue(entity, requires_duplicate_detection=True)
    due = datetime(2100, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    given: list[Any] = [
        ("a", "s", "s", None, 60_000, {"color": "red", "size": "2"}, "text body", 1, "red"),
        ("b", None, "k", due, None, None, "", 2, None),
    ]
    schema = """message_id STRING, session_id STRING, partition_key STRING,
        scheduled_enqueue_time TIMESTAMP, time_to_live_ms INT, properties MAP<STRING, STRING>,
        body STRING, sequence_number LONG, subject STRING"""
    write(spark.createDataFrame(given, schema), server.connection_string, entity)

    first, second = client.peek(entity, limit=10)
    assert first.message == Message(
        message_id="a", session_id="s", partition_key="s", time_to_live_ms=60_000,
        properties={"color": "red", "size": "2"}, body=b"text body", subject="red",
    )  # fmt: skip
    # Times are whole milliseconds here, and a message never comes before its time.
    assert second.message == Message(
        message_id="b", partition_key="k", body=b"", scheduled_enqueue_time_ms=4_102_444_800_001
    )
    assert second.state == "scheduled"


@pytest.mark.promise("R6", "X7")
def test_what_was_read_can_be_written_again(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str
) -> None:
    client.create_queue(entity)
    client.create_queue(f"{entity}-2")
    sent = [
        Message(body=b"\xff\x00", message_id="a", properties={"n": 1, "b": b"\x00", "t": True}),
        Message(body=b"", message_id="b", correlation_id="c", reply_to="r"),
    ]
    client.send_batch(entity, sent)
    rows = spark.read.format("onibus").options(connection=server.connection_string, entity=entity)
    write(rows.load(), server.connection_string, f"{entity}-2")
    assert [one.message for one in client.peek(f"{entity}-2", limit=10)] == sent


@pytest.mark.promise("P3", "P4")
def test_rows_go_to_the_task_of_their_partition(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str
) -> None:
    client.create_queue(entity, enable_partitioning=True, requires_duplicate_detection=True)
    rows = spark.range(400).select(
        sql.concat(sql.lit("m"), "id").alias("message_id"),
        sql.when(sql.col("id") % 2 == 0, sql.concat(sql.lit("s"), sql.col("id") % 7)).alias(
            "session_id"
        ),
        sql.col("id").cast("string").alias("body"),
    )
    target = {"connection": server.connection_string, "entity": entity}
    shuffled = by_partition(rows, target, order_by=["message_id"])
    tasks = shuffled.select("message_id", "session_id", sql.spark_partition_id()).collect()
    assert len(tasks) == 400
    for name, session, task in tasks:
        assert crc32((session or name).encode()) % 16 == task
    write(shuffled, server.connection_string, entity)
    found = log_of(client, entity, "message_id", "session_id", "partition")
    assert {(name, session, place) for name, session, place in found} == {
        (name, session, task) for name, session, task in tasks
    }
    # In each partition as they were ordered.
    for partition in range(16):
        names = [name for name, _, place in found if place == partition]
        assert names == sorted(names)


@pytest.mark.promise("R6", "D1")
def test_ids_of_the_content_make_a_batch_write_repeatable(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str
) -> None:
    client.create_queue(entity, requires_duplicate_detection=True)
    rows = spark.range(100).select(sql.col("id").cast("string").alias("body"))
    named = with_message_ids(rows)
    for _ in range(2):
        write(named, server.connection_string, entity)
    assert len(log_of(client, entity, *COLUMNS)) == 100
    assert client.producers(entity) == []
    # An id that is there stays; null columns count as well as others.
    some = spark.createDataFrame(
        [("own", None, "x"), (None, None, "x"), (None, "s", "x")],
        "message_id STRING, session_id STRING, body STRING",
    )
    ids = [row.message_id for row in with_message_ids(some, "session_id", "body").collect()]
    assert ids[0] == "own"
    assert len({*ids}) == 3
    with pytest.raises(InvalidArgument, match="nowhere"):
        with_message_ids(some, "nowhere")


@pytest.mark.promise("R6")
def test_a_numbered_batch_is_written_once(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str
) -> None:
    client.create_queue(entity)
    rows = spark.range(10).select(sql.col("id").cast("string").alias("body"))
    for number in (3, 3, 4):
        write(rows, server.connection_string, entity, producer="daily", batch=number)
    assert len(log_of(client, entity, *COLUMNS)) == 20
    with pytest.raises(PySparkException, match=r"daily.*has published batch 4"):
        write(rows, server.connection_string, entity, producer="daily", batch=2)
    assert len(log_of(client, entity, *COLUMNS)) == 20
    assert client.staged(entity) == []


@pytest.mark.promise("R6")
def test_a_bad_row_is_named_and_nothing_is_written(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str
) -> None:
    client.create_queue(entity, enable_partitioning=True, requires_duplicate_detection=True)
    good = [(f"m{at}", None, None, "x") for at in range(12_000)]
    schema = "message_id STRING, session_id STRING, partition_key STRING, body STRING"
    bad: list[tuple[Any, str]] = [
        # Found here, and found by the bus.
        (("no body", None, None, None), r"row 12000 of task 0, message_id 'no body': body is null"),
        (("two keys", "a", "b", "x"), r"row 12000 of task 0, message_id 'two keys': .*differ"),
    ]
    for row, says in bad:
        rows = spark.createDataFrame([*good, row], schema).coalesce(1)
        with pytest.raises(PySparkException, match=says) as caught:
            write(rows, server.connection_string, entity)
        assert DEVELOPMENT_KEY not in str(caught.value)
    assert log_of(client, entity, *COLUMNS) == []
    assert client.staged(entity) == []


@pytest.mark.promise("R6", "R8")
def test_a_checkpoint_that_does_not_fit_is_a_loud_error(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> None:
    client.create_queue(entity)
    other = f"{entity}-2"
    client.create_queue(other)
    folder = tmp_path / "in"
    put_rows(folder, "0", 0, 10)
    rows = rows_stream(spark, folder)
    target = server.connection_string
    write_stream(rows, target, entity, tmp_path / "one")
    # A new checkpoint begins at 0, which is the number that was published last.
    with pytest.raises(PySparkException, match=r"another checkpoint.*reset the producer"):
        write_stream(rows, target, entity, tmp_path / "two")
    put_rows(folder, "1", 10, 10)
    with pytest.raises(PySparkException, match="used with another entity"):
        write_stream(rows, target, other, tmp_path / "one")
    assert log_of(client, other, *COLUMNS) == []
    assert len(log_of(client, entity, *COLUMNS)) == 10
    write_stream(rows, target, entity, tmp_path / "one")
    assert len(log_of(client, entity, *COLUMNS)) == 20
    # Made again, the entity knows nothing of what was written to the one before.
    client.delete_queue(entity)
    client.create_queue(entity)
    put_rows(folder, "2", 20, 10)
    with pytest.raises(PySparkException, match="recreated"):
        write_stream(rows, target, entity, tmp_path / "one")
    assert log_of(client, entity, *COLUMNS) == []
    assert client.staged(entity) == []


def test_plans_do_not_show_keys(spark: SparkSession, server: ServerProcess) -> None:
    target = {
        "connection": server.connection_string,
        "entity": "q",
        "key": "c2VjcmV0",
        "keyName": "k",
    }
    jvm = spark._jvm
    assert jvm is not None
    options = jvm.PythonUtils.toScalaMap(target)
    shown = jvm.org.apache.spark.sql.internal.SQLConf.get().redactOptions(options).toString()
    assert "entity" in shown
    assert DEVELOPMENT_KEY not in shown
    assert "c2VjcmV0" not in shown
