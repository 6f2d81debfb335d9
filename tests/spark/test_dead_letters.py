"""Dead-lettered messages as a batch and as a stream: the readers alone, and through Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable

from onibus.client import Client
from onibus.core.errors import InvalidArgument, LogGap
from onibus.core.message import Message
from onibus.spark.batch_reading import batch_reader
from onibus.spark.dead_letter_stream import DeadLetterStreamReader
from onibus.spark.options import read_options
from onibus.spark.schema import known_columns, spark_schema
from onibus.spark.stream_reading import stream_reader
from tests.client.server_helpers import ServerThread
from tests.spark.lake_helpers import wait_until_gone
from tests.spark.reading import Reads

Seen = list[tuple[bytes, str | None]]


@pytest.fixture
def bus(own_server: ServerThread) -> Iterator[Client]:
    with own_server.client() as client:
        yield client


def dead_letter(client: Client, entity: str, *bodies: bytes, source: str | None = None) -> None:
    """Send messages and dead-letter them in the reverse order, each with its body as the reason."""
    client.send_batch(source or entity, [Message(body=body) for body in bodies])
    with client.receiver(entity) as receiver:
        held = receiver.receive(len(bodies), wait_ms=5_000)
        for one in sorted(held, key=lambda one: one.sequence_number, reverse=True):
            receiver.dead_letter(one, reason=one.body.decode())


def rows_of(reader: DataSourceReader | DataSourceStreamReader, parts: Sequence[Any]) -> Seen:
    batches: list[Any] = [batch for part in parts for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["body"], row["dead_letter_reason"]) for row in rows]


@pytest.mark.promise("R4")
@pytest.mark.parametrize("kind", ["queue", "subscription"])
def test_a_stream_has_each_message_as_it_is_dead_lettered(
    own_server: ServerThread, bus: Client, entity: str, kind: str
) -> None:
    source = entity
    if kind == "queue":
        bus.create_queue(entity)
    else:
        bus.create_topic(entity)
        entity = bus.create_subscription(entity, "all")
    dead_letter(bus, entity, b"before", source=source)
    given = {
        "connection": own_server.connection_string,
        "entity": f"{entity}/$DeadLetterQueue",
    }
    options = read_options(given)
    schema = spark_schema(known_columns(options))
    stream = stream_reader(read_options({**given, "reader": "errors"}), schema)
    assert isinstance(stream, DeadLetterStreamReader)
    with stream._client:
        start = stream.initialOffset()
        assert stream.latestOffset(start, ReadAllAvailable()) == start
        bus.send_batch(source, [Message(body=b"alive")])
        bus.receiver(entity, delete=True).receive(1, wait_ms=5_000)
        dead_letter(bus, entity, b"one", b"two", source=source)
        end = stream.latestOffset(start, ReadAllAvailable())
        seen = rows_of(stream, stream.partitions(start, end))
        assert seen == [(b"two", "two"), (b"one", "one")]
        batch = batch_reader(options, schema)
        there = [(b"before", "before"), (b"one", "one"), (b"two", "two")]
        assert sorted(rows_of(batch, batch.partitions())) == there
        with bus.receiver(entity, dead_letters=True) as receiver:
            receiver.complete(*receiver.receive(3, wait_ms=5_000))
        assert rows_of(batch, batch.partitions()) == []
        # A message that has left before it was read, and is not retained, is named.
        wait_until_gone(bus, source, 5)
        with pytest.raises(LogGap, match="message 4 was dead-lettered, left"):
            rows_of(stream, stream.partitions(start, end))


def test_a_dead_letter_queue_has_no_other_tables(own_server: ServerThread) -> None:
    with pytest.raises(InvalidArgument, match="omit option table"):
        read_options(
            {
                "connection": own_server.connection_string,
                "entity": "q/$deadletterqueue",
                "table": "outcomes",
            }
        )


@pytest.mark.promise("R4")
def test_spark_reads_dead_letters(
    client: Client, entity: str, reads: Reads, tmp_path: Path
) -> None:
    client.create_queue(entity, retention_ms=3_600_000)
    dead_letter(client, entity, b"one", b"two")
    reads.options["entity"] = f"{entity}/$deadletterqueue"
    assert sorted(row.dead_letter_reason for row in reads.read().collect()) == ["one", "two"]
    found: list[str] = []
    rows = reads.stream(bodyFormat="text", columns="body,dead_letter_reason")
    reads.run(rows, tmp_path, lambda some: found.extend(row.body for row in some))
    assert found == ["two", "one"]
