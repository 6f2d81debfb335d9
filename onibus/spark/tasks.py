"""What Spark tells a task of the streaming query that it belongs to."""

from __future__ import annotations

from pyspark import TaskContext

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


def local_property(name: str) -> str | None:
    """Return a property of the task's query; None outside of queries."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
