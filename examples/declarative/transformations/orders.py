"""Tables of the queue `orders`, and a queue for large orders.

Set ONIBUS_CONNECTION to the server's connection string, for the Spark Connect server, too.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

spark = SparkSession.active()
SERVER = {"connection": os.environ["ONIBUS_CONNECTION"]}


@dp.table(comment="Every message of the queue, exactly once")
def orders() -> DataFrame:
    return spark.readStream.format("onibus").options(**SERVER, entity="orders").load()


@dp.materialized_view(comment="Messages per minute")
def orders_by_minute() -> DataFrame:
    minute = F.date_trunc("minute", "enqueued_time").alias("minute")
    return spark.read.table("orders").groupBy(minute).count()


dp.create_sink("large_orders", "onibus", {**SERVER, "entity": "large", "producer": "declarative"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    rows = spark.readStream.table("orders").where(F.length("body") > 100)
    return rows.select("message_id", "body")
