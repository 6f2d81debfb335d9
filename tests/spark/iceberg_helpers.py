"""Iceberg tables of a lake, as another program reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from onibus.spark.iceberg_catalog import open_catalog
from onibus.spark.lake import Lake


def own_catalog(place: Path) -> Catalog:
    """The catalog in a lake."""
    return open_catalog(str(place), "")


def table_of(place: Path, entity: str, table: str) -> Table:
    """A table of the catalog in a lake."""
    catalog = own_catalog(place)
    try:
        return catalog.load_table((entity.replace("/", "@"), table))
    finally:
        catalog.close()


def rows_of(place: Path, entity: str, table: str) -> pa.Table:
    """What pyiceberg reads."""
    return table_of(place, entity, table).scan().to_arrow()


def listed(table: Table) -> list[str]:
    """The names of the files that a table has now."""
    paths = table.inspect.data_files()["file_path"].to_pylist()
    return sorted(path.rpartition("/")[2] for path in paths)


def same(lake: Lake, place: Path, table: str) -> bool:
    """Whether both kinds of tables have the same files, and the same rows."""
    delta = DeltaTable(lake.address(table))
    iceberg = table_of(place, lake.folder, table)
    if listed(iceberg) != sorted(uri.rpartition("/")[2] for uri in delta.file_uris()):
        return False
    columns = [field.name for field in delta.schema().fields]
    return _rows(iceberg.scan().to_arrow(), columns) == _rows(delta.to_pyarrow_table(), columns)


def _rows(rows: pa.Table, columns: list[str]) -> list[str]:
    return sorted(map(repr, rows.select(columns).to_pylist(maps_as_pydicts="strict")))


def properties_of(place: Path, entity: str, table: str) -> dict[str, Any]:
    return dict(table_of(place, entity, table).properties)


def contents(place: Path) -> dict[str, bytes]:
    """All files of a lake."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and "_lease" not in path.parts
    }
