"""Python processes of Spark that end without a traceback.

Spark closes the socket of a process that it no longer needs: the planner of a query that has ended,
or a worker whose task has enough rows, as for `head`. Such a process prints a traceback of the
broken pipe. Errors of queries take another way, to Spark.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace, TracebackType
from typing import Any

#: The program that plans the micro-batches of a query.
_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
#: The program of workers.
_DAEMON = "pyspark.daemon"

_CLOSED = (BrokenPipeError, ConnectionResetError)


def end_quietly() -> None:
    """Print no traceback of a closed socket if this process is one of Spark's."""
    main: Any = sys.modules.get("__main__")
    program = getattr(getattr(main, "__spec__", None), "name", None)
    if program == _PLANNER:
        sys.excepthook = _excepthook
    elif program == _DAEMON:
        main.traceback = SimpleNamespace(**{**vars(traceback), "print_exc": _print_exc})


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, _CLOSED):
        sys.__excepthook__(kind, error, trace)


def _print_exc() -> None:
    if not isinstance(sys.exception(), _CLOSED):
        traceback.print_exc()
