"""A Spark job that appends the new messages of a queue to Parquet files: python spark_job.py

Each run continues after the last one, at the position in the folder `state`. ONIBUS_URL names the
server; by default it is the one that `make run` starts.
"""

import os

from pyspark.sql import SparkSession

from onibus.spark.session import spark_session

URL = os.environ.get("ONIBUS_URL", "http://localhost:5300")
QUEUE = "orders"


def append_new_messages(spark: SparkSession) -> None:
    """Write the messages since the last run, each exactly once, then stop."""
    orders = (
        spark.readStream.format("onibus")
        .options(url=URL, entity=QUEUE, bodyFormat="text", reader="spark-job")
        .load()
    )
    query = (
        orders.select("sequence_number", "enqueued_time", "message_id", "body")
        .writeStream.format("parquet")
        .option("path", "orders-parquet")
        .option("checkpointLocation", "state")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    """Append the new messages and print all of them."""
    spark = spark_session()
    append_new_messages(spark)
    rows = spark.read.parquet("orders-parquet").orderBy("sequence_number")
    rows.show()
    print(rows.count(), "messages in orders-parquet")


if __name__ == "__main__":
    main()
