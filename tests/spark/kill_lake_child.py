"""A capture in its own process, which kills itself at a named point.

A point is `before` or `after` a step, and the steps are the calls that change a lake, its catalog,
or the reader of the log. A capture that ends says how often it came to each point.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyiceberg.io.pyarrow
import sqlalchemy.orm
from pyiceberg.catalog.sql import SqlCatalog

from onibus.client import Client
from onibus.spark import delta_log, lake_capture
from onibus.spark.lake_files import LakeFiles
from tests.spark.lake_helpers import Captures
from tests.spark.test_lake_steps import is_bad

DATA, DELTA, MANIFEST, OTHER = "data file", "Delta commit", "manifest", "other file"
ICEBERG, CATALOG, READER, DELETE = "Iceberg file", "catalog commit", "reader", "delete"
STEPS = (DATA, DELTA, MANIFEST, OTHER, ICEBERG, CATALOG, READER, DELETE)
POINTS = tuple(f"{when} {step}" for step in STEPS for when in ("before", "after"))


class Death:
    """Kills this process at the nth time that it comes to a point."""

    def __init__(self, point: str, times: int) -> None:
        self._point, self._left = point, times
        self.come: Counter[str] = Counter()

    def come_to(self, point: str) -> None:
        self.come[point] += 1
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: type, name: str, step: Callable[..., str | None]) -> None:
        """Have a call come to the points before and after it."""
        call: Callable[..., Any] = getattr(owner, name)

        def watched(*given: Any, **more: Any) -> Any:
            what = step(*given)
            if what is not None:
                self.come_to(f"before {what}")
            found = call(*given, **more)
            if what is not None:
                self.come_to(f"after {what}")
            return found

        setattr(owner, name, watched)


def _written(files: object, name: str, *given: object) -> str | None:
    """Return which step the write of a file is; None if a thread writes it at any time."""
    if name.startswith("_lease"):
        return None
    if "_delta_log" in name:
        return DELTA if name.endswith(".json") else OTHER
    if name.startswith("_manifest"):
        return MANIFEST
    return DATA if name.endswith(".parquet") else OTHER


def _deleted(files: object, name: str, *given: object) -> str | None:
    return None if name.startswith("_lease") else DELETE


def _is(step: str) -> Callable[..., str | None]:
    return lambda *given: step


def capture(
    connection: str,
    entity: str,
    place: str,
    point: str,
    times: int,
    ahead_ms: int,
    given: Any,
    come: Connection,
) -> None:
    """Capture, and die at a point, if the capture comes to it that often; else send `come`."""
    death = Death(point, times)
    death.watch(LakeFiles, "put", _written)
    death.watch(LakeFiles, "put_new", _written)
    death.watch(LakeFiles, "delete", _deleted)
    death.watch(LakeFiles, "delete_folder", _deleted)
    death.watch(pyiceberg.io.pyarrow.PyArrowFile, "create", _is(ICEBERG))
    death.watch(pyiceberg.io.pyarrow.PyArrowFileIO, "delete", _is(DELETE))
    death.watch(sqlalchemy.orm.Session, "commit", _is(CATALOG))
    death.watch(SqlCatalog, "create_namespace", _is(CATALOG))
    death.watch(Client, "move_reader", _is(READER))
    delta_log.CHECKPOINT_EACH = 4
    now_ms = lake_capture._now_ms
    lake_capture._now_ms = lambda: now_ms() + ahead_ms
    Captures(connection, entity).run(Path(place), bad=is_bad, **given)
    come.send(death.come)
