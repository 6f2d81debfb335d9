"""Make the Iceberg tables of a lake again: it was moved, or another program changed them."""

from __future__ import annotations

import json

from onibus.core.errors import InvalidOperation
from onibus.spark.iceberg_catalog import ICEBERG, check_tables
from onibus.spark.lake import ENTITY, Lake
from onibus.spark.lake_files import LakeDamaged, LakeFiles
from onibus.spark.lake_iceberg import IcebergTables, forget_own
from onibus.spark.lake_manifest import Iceberg
from onibus.spark.lake_writer import WAIT_S, LakeWriter


def entities_with_iceberg(place: str) -> list[str]:
    """Return the entities of a lake that have Iceberg tables."""
    store = LakeFiles(place, "")
    found = []
    for name in store.sizes(""):
        if name.partition("/")[2] != ENTITY:
            continue
        try:
            entity = str(json.loads(store.read(name) or b"")["entity"])
        except (ValueError, KeyError, TypeError):
            raise LakeDamaged(f"{store.address}/{name} is damaged: restore it") from None
        stored = Lake(place, entity).stored_manifest()
        if stored is not None and stored.iceberg is not None:
            found.append(entity)
    if not found:
        raise InvalidOperation(
            f"{store.address} has no Iceberg tables: capture with --table iceberg"
        )
    return sorted(found)


def register(lake: Lake, catalog: str | None = None, *, wait_s: float = WAIT_S) -> list[str]:
    """Make the Iceberg tables of an entity's lake again from its Delta tables; return their names.

    `catalog` is the catalog from now on; None for the one that the lake records. Readers lack the
    tables until this ends, and earlier snapshots afterwards. No server is needed.
    """
    check_tables(ICEBERG, catalog)
    stored = lake.stored_manifest()
    if stored is None or stored.iceberg is None:
        raise InvalidOperation(
            f"{lake.store.address} has no Iceberg tables: capture with --table iceberg"
        )
    where = stored.iceberg.catalog if catalog is None else catalog
    with IcebergTables(lake, where) as tables:
        tables.check_owner()
        with LakeWriter(lake, wait_s=wait_s) as writer:
            if where != stored.iceberg.catalog:
                forget_own(lake, stored.iceberg)
                writer.commit(iceberg=Iceberg(where))
            tables.drop()
            tables.catch_up(writer.logs)
            return [tables.name(table) for table, log in writer.logs.items() if log.version >= 0]
