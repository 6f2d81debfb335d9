"""Tasks of Spark: what they know of their query, and what their worker does after them."""

from __future__ import annotations

import gc
import sys

from pyspark import TaskContext

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
#: The programs of Python workers.
_WORKERS = ("pyspark.daemon", "pyspark.worker")


def local_property(name: str) -> str | None:
    """Return a property of the task's query; None outside of queries."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


#: How many modules were loaded when this process last spared them.
_spared = 0


def spare_modules() -> None:
    """Exempt what a worker has loaded from the garbage collection after each task.

    Spark collects garbage after every task of a Python worker. The objects of imported modules are
    never garbage, and looking through them takes longer than reading thousands of rows.
    """
    global _spared
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(main, "name", None) in _WORKERS and len(sys.modules) > _spared:
        _spared = len(sys.modules)
        gc.freeze()
