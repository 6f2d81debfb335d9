"""The format is found by itself, and reads what was sent."""

from __future__ import annotations

from pyspark.sql import SparkSession

from onibus import Message
from onibus.client import Client
from tests.client.server_helpers import ServerProcess


def test_what_was_sent_is_read(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str
) -> None:
    client.create_queue(entity)
    client.send_batch(
        entity,
        [Message(body=b"%d" % at, message_id=f"m{at}", properties={"n": at}) for at in range(5)],
    )

    rows = (
        spark.read.format("onibus")
        .option("connection", server.connection_string)
        .option("entity", entity)
        .load()
    )

    found = [
        (row.sequence_number, row.message_id, row.properties, row.body) for row in rows.collect()
    ]
    assert found == [(at + 1, f"m{at}", f'{{"n":{at}}}', b"%d" % at) for at in range(5)]
