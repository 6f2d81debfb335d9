"""Every store passes the suite of onibus/store/conformance.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from onibus.core.records import TABLES
from onibus.store.conformance import CHECKS, Exercise
from onibus.store.interface import Store
from onibus.store.memory import MemoryStore, Tables
from onibus.store.sqlite import SqliteStore
from onibus.testing.disk import SimulatedDisk


def memory(_directory: Path, *, kept: bool) -> Exercise:
    tables: Tables = {table: {} for table in TABLES}
    return Exercise(
        open=lambda: MemoryStore("memory", tables),
        fail_next=lambda store: cast(MemoryStore, store).fail_next(kept=kept),
    )


def sqlite(directory: Path) -> Exercise:
    def fail_next(store: Store) -> None:
        # The connection is gone under the store's feet, which no call can survive.
        cast(SqliteStore, store)._writer.close()

    return Exercise(open=lambda: SqliteStore(directory / "store", "one"), fail_next=fail_next)


def simulated(_directory: Path) -> Exercise:
    disk = SimulatedDisk(seed=1)
    return Exercise(
        open=lambda: SqliteStore("store", "one", vfs=disk.name),
        fail_next=lambda store: disk.fail_call("sync", 1),
    )


STORES: dict[str, Callable[[Path], Exercise]] = {
    "memory, failing commits lost": lambda directory: memory(directory, kept=False),
    "memory, failing commits kept": lambda directory: memory(directory, kept=True),
    "sqlite": sqlite,
    "sqlite on a simulated disk": simulated,
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("store", STORES)
def test_store_conforms(store: str, check: Callable[[Exercise], None], tmp_path: Path) -> None:
    check(STORES[store](tmp_path))
