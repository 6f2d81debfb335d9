"""A driver of its own, which a test can kill: writes a folder of files to an entity.

python -m tests.spark.stream_driver MASTER CONNECTION ENTITY FOLDER CHECKPOINT SCRATCH
"""

from __future__ import annotations

import sys
from pathlib import Path

from onibus.spark.session import spark_session
from tests.spark.writing_helpers import rows_stream, write_stream


def main(master: str, connection: str, entity: str, folder: str, place: str, scratch: str) -> None:
    """Write what the folder has that was not written yet."""
    settings = {
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "4",
    }
    spark = spark_session(master, **settings)
    rows = rows_stream(spark, Path(folder)).repartition(2)
    write_stream(rows, connection, entity, Path(place), retrySeconds=60)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
