"""Tables of the queue `orders`, and a queue for large orders.

Set ONIBUS_CONNECTION to the server's connection string, for the Spark Connect server, too.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

spark = SparkSession.active()
SERVER = {"connection": os.environ["ONIBUS_CONNECTION"]}


def stream(table: str) -> DataFrame:
    # Each flow has its own reader, which keeps its rows in the broker.
    source = {**SERVER, "entity": "orders", "table": table, "reader": f"declarative-{table}"}
    return spark.readStream.format("onibus").options(**source).load()


@dp.table(comment="Every message of the queue, once")
def orders() -> DataFrame:
    return stream("messages")


@dp.table(comment="The changes of each message: dead-lettered, completed, expired")
def outcomes() -> DataFrame:
    return stream("outcomes")


@dp.materialized_view(comment="Messages per minute")
def orders_by_minute() -> DataFrame:
    minute = F.date_trunc("minute", "enqueued_time").alias("minute")
    return spark.read.table("orders").groupBy(minute).count()


@dp.materialized_view(comment="Each message with its last outcome; null while it has none")
def order_states() -> DataFrame:
    # What auto_cdc/states.py keeps as a table. Each run computes it again.
    last = F.max_by(F.struct("outcome", "time", "reason"), "number").alias("last")
    message = ["partition", "sequence_number"]
    ends = spark.read.table("outcomes").groupBy(*message).agg(last)
    orders = spark.read.table("orders").select(*message, "message_id", "enqueued_time")
    return orders.join(ends, message, "left").select(orders["*"], "last.*")


dp.create_sink("large_orders", "onibus", {**SERVER, "entity": "large", "producer": "declarative"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    rows = spark.readStream.table("orders").where(F.length("body") > 100)
    return rows.select("message_id", "body")
