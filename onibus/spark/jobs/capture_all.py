"""Capture of every entity of a server, in rounds.

A round lists the entities and the progress of each capture, which takes a few calls, and runs Spark
only for entities with new rows. A failure is reported, and retried in the next round; it does not
affect the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from onibus.client import Client
from onibus.core.errors import EntityNotFound, OnibusError
from onibus.spark.jobs.capture import Captured, capture
from onibus.spark.lake import Lake, tables_of
from onibus.spark.lake_capture import has_news
from onibus.spark.lake_reserving import reserve
from onibus.spark.options import ConnectionOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def everything(client: Client) -> list[str]:
    """Return the names of all queues, topics and subscriptions."""
    names = list(client.queues())
    for topic in client.topics():
        names.append(topic)
        # It may have been deleted since.
        with suppress(EntityNotFound):
            names += client.topic(topic).subscriptions
    return names


def capture_round(
    spark: SparkSession | Callable[[], SparkSession],
    source: Mapping[str, str],
    lake: str,
    *,
    entities: Sequence[str] | None = None,
    keep_ms: int | None = None,
    table_format: str | None = None,
    catalog: str | None = None,
    on_captured: Callable[[str, Captured], None] = lambda entity, done: None,
    on_failure: Callable[[str, Exception], None] = lambda entity, error: None,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Capture all entities of a server, or those named, once; return how many had anything new.

    `spark` may be a function, which is called once there are rows to capture. `source` are the
    options of the format onibus, without an entity. `keep_ms`, `table_format` and `catalog` are
    those of `capture`.
    """
    from pyspark.errors import PySparkException

    connection = ConnectionOptions(
        server=source.get("connection") or source["url"],
        entity="",
        key_name=source.get("keyName", ""),
        key=source.get("key", ""),
        certificate=source.get("certificate"),
    )
    with connection.client() as client:
        named = everything(client) if entities is None else entities
        names = []
        for name in named:
            try:
                place = Lake(lake, name)
                if place.identity() is None:
                    # The captures before it take their time, and Spark takes its time to start.
                    reserve(client, lake, name)
                if has_news(client, place, tables_of(name), keep_ms, table_format, catalog):
                    names.append(name)
            except EntityNotFound:
                continue
            except OnibusError as error:
                on_failure(name, error)
    for name in names:
        if stopped():
            break
        try:
            given = {**source, "entity": name}
            done = capture(
                spark,
                given,
                lake,
                keep_ms=keep_ms,
                table_format=table_format,
                catalog=catalog,
                stopped=stopped,
                wait_s=0,
            )
        except ConnectionError:
            # Java is gone, and with it everything that could be captured.
            raise
        except (OnibusError, PySparkException, OSError, pa.ArrowException) as error:
            on_failure(name, error)
        else:
            on_captured(name, done)
    return len(names)
