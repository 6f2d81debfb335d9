"""Catalogs of a lake's Iceberg tables: its own, SQL and REST ones, and ones that are down."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable

from onibus.client import Client
from onibus.core.errors import InvalidArgument
from onibus.spark.jobs.register import register
from onibus.spark.lake import MESSAGES
from onibus.spark.lake_files import LakeFailed
from tests.client.server_helpers import ServerThread
from tests.spark.iceberg_helpers import contents, own_catalog, rows_of
from tests.spark.lake_helpers import Captures, send
from tests.spark.rest_catalog import rest_catalog

ICEBERG: dict[str, Any] = {"table_format": "iceberg"}


def test_a_catalog_of_that_address(captures: Captures, bus: Client, tmp_path: Path) -> None:
    place, uri = tmp_path / "lake", f"sqlite:///{tmp_path}/shared.db"
    send(bus, captures.entity, 1, 4)
    captures.run(place, catalog=uri, **ICEBERG)
    assert not (place / "iceberg.db").exists()
    with pytest.raises(InvalidArgument, match="password"):
        captures.run(place, catalog="postgresql+psycopg2://me:secret@host/db", **ICEBERG)
    send(bus, captures.entity, 5, 8)
    captures.run(place)
    catalog = load_catalog("onibus", uri=uri)
    assert catalog.load_table((captures.entity, MESSAGES)).scan().to_arrow().num_rows == 8
    catalog.close()
    # Another lake of the same entity cannot have the same tables.
    with pytest.raises(LakeFailed, match="is not of"):
        captures.run(tmp_path / "other", catalog=uri, **ICEBERG)
    assert not (tmp_path / "other").exists()


def test_a_namespace_of_another_program(captures: Captures, bus: Client, tmp_path: Path) -> None:
    """A new lake does not take it, and nothing is written."""
    uri = f"sqlite:///{tmp_path}/shared.db"
    catalog = load_catalog("onibus", uri=uri)
    catalog.create_namespace(captures.entity)
    catalog.close()
    with pytest.raises(LakeFailed, match="is not of"):
        captures.run(tmp_path / "lake", catalog=uri, **ICEBERG)
    assert not (tmp_path / "lake").exists()


def test_a_damaged_catalog_in_a_lake(captures: Captures, bus: Client, tmp_path: Path) -> None:
    """It is derived, so a user can delete it."""
    send(bus, captures.entity, 1, 3)
    captures.run(tmp_path, **ICEBERG)
    (tmp_path / "iceberg.db").write_bytes(b"no database" * 1_000)
    words = "Delete it, then run onibus pipeline register"
    with pytest.raises(LakeFailed, match=words):
        captures.run(tmp_path)
    with pytest.raises(LakeFailed, match=words):
        register(captures.lake(tmp_path))
    (tmp_path / "iceberg.db").unlink()
    register(captures.lake(tmp_path))
    captures.run(tmp_path)
    assert rows_of(tmp_path, captures.entity, MESSAGES).num_rows == 3


def test_metadata_that_was_deleted(captures: Captures, bus: Client, tmp_path: Path) -> None:
    place, uri = tmp_path / "lake", f"sqlite:///{tmp_path}/shared.db"
    captures.run(place, catalog=uri, **ICEBERG)
    shutil.rmtree(place / captures.entity / "_iceberg")
    send(bus, captures.entity, 1, 3)
    with pytest.raises(LakeFailed, match=r"metadata of the Iceberg table .* is missing or damaged"):
        captures.run(place)
    register(captures.lake(place))
    assert captures.run(place).messages == 3


def test_a_reader_opens_the_catalog_while_a_capture_makes_it(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would make its tables: the reader sees a file that has them."""
    link, create = os.link, SqlCatalog.create_tables
    seen: list[str] = []

    def look(catalog: SqlCatalog) -> None:
        seen.append(str(catalog.engine.url.database))
        if len(seen) == 1:
            assert not (tmp_path / "iceberg.db").exists()
        create(catalog)

    def linked(file: str, other: str) -> None:
        if other.endswith("iceberg.db"):
            # A program that makes it first, too.
            load_catalog("other", uri=f"sqlite:///{other}").close()
        link(file, other)

    monkeypatch.setattr(SqlCatalog, "create_tables", look)
    monkeypatch.setattr(os, "link", linked)
    send(bus, captures.entity, 1, 4)
    captures.run(tmp_path, **ICEBERG)
    assert len(seen) == 2
    rows = rows_of(tmp_path, captures.entity, MESSAGES)
    assert sorted(rows.column("sequence_number").to_pylist()) == [1, 2, 3, 4]
    assert not list(tmp_path.glob("iceberg.db.*"))


def test_two_programs_make_the_tables_of_a_catalog(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = SqlCatalog.create_tables

    def second(catalog: SqlCatalog) -> None:
        monkeypatch.setattr(SqlCatalog, "create_tables", create)
        other = load_catalog("onibus", uri=str(catalog.engine.url))
        other.close()
        SqlCatalogBaseTable.metadata.create_all(catalog.engine, checkfirst=False)

    monkeypatch.setattr(SqlCatalog, "create_tables", second)
    send(bus, captures.entity, 1, 4)
    uri = f"sqlite:///{tmp_path}/shared.db"
    captures.run(tmp_path / "lake", catalog=uri, **ICEBERG)
    with closing(load_catalog("onibus", uri=uri)) as catalog:
        rows = catalog.load_table((captures.entity, MESSAGES)).scan().to_arrow()
    assert rows.num_rows == 4


@pytest.mark.parametrize("name", ["a.b/c", "a..b", "a...b"])
def test_names_with_dots(own_server: ServerThread, bus: Client, tmp_path: Path, name: str) -> None:
    bus.create_queue(name)
    captures = Captures(own_server.connection_string, name)
    for number in (1, 2):
        send(bus, name, number, number)
        captures.run(tmp_path, **ICEBERG)
    namespace = name.replace("/", "@").replace("..", ".%2E")
    with closing(own_catalog(tmp_path)) as catalog:
        for table in ((namespace, MESSAGES), f"{namespace}.{MESSAGES}"):
            assert catalog.load_table(table).scan().to_arrow().num_rows == 2


def test_a_catalog_of_pyicebergs_configuration(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    send(bus, captures.entity, 1, 4)
    captures.run(tmp_path / "lake", catalog="shop", **ICEBERG)
    catalog = load_catalog("shop")
    assert catalog.load_table((captures.entity, MESSAGES)).scan().to_arrow().num_rows == 4
    catalog.close()
    with pytest.raises(LakeFailed, match="cannot use the Iceberg catalog nowhere"):
        captures.run(tmp_path / "other", catalog="nowhere", **ICEBERG)
    assert not (tmp_path / "other").exists()


@pytest.mark.promise("R9")
def test_a_rest_catalog(captures: Captures, bus: Client, tmp_path: Path) -> None:
    place, entity = tmp_path / "lake", captures.entity
    with rest_catalog(f"sqlite:///{tmp_path}/served.db") as served:

        def numbers() -> list[int]:
            with closing(load_catalog("any", uri=served.uri)) as catalog:
                rows = catalog.load_table((entity, MESSAGES)).scan().to_arrow()
            return sorted(rows.column("sequence_number").to_pylist())

        for at in range(9):
            send(bus, entity, 2 * at + 1, 2 * at + 2)
            captures.run(place, file_size=1, catalog=served.uri, **ICEBERG)
        assert captures.run(place).merged
        assert numbers() == captures.numbers(place) == list(range(1, 19))
        # A commit that was made, and whose response was lost, is not made twice.
        send(bus, entity, 19, 20)
        served.lost.append(500)
        with pytest.raises(LakeFailed, match="cannot use the Iceberg catalog http://127"):
            captures.run(place)
        assert not served.lost
        send(bus, entity, 21, 22)
        captures.run(place)
        assert numbers() == captures.numbers(place) == list(range(1, 23))
        # `register` recreates the tables of a moved lake; a capture does not.
        moved = tmp_path / "moved"
        place.rename(moved)
        with pytest.raises(LakeFailed, match="run onibus pipeline register"):
            captures.run(moved)
        register(captures.lake(moved))
        send(bus, entity, 23, 24)
        captures.run(moved)
        assert numbers() == captures.numbers(moved) == list(range(1, 25))
        before = contents(moved)
    send(bus, entity, 25, 26)
    with pytest.raises(LakeFailed, match="cannot use the Iceberg catalog http://127"):
        captures.run(moved)
    assert contents(moved) == before


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9/catalog", "sqlite:////no/such/folder/c.db"])
def test_a_catalog_that_is_down(captures: Captures, bus: Client, tmp_path: Path, uri: str) -> None:
    send(bus, captures.entity, 1, 4)
    with pytest.raises(LakeFailed, match="cannot use the Iceberg catalog"):
        captures.run(tmp_path / "lake", catalog=uri, **ICEBERG)
    assert not (tmp_path / "lake").exists()
    assert not bus.readers(captures.entity)


def test_a_recorded_catalog_that_is_down(captures: Captures, bus: Client, tmp_path: Path) -> None:
    shared, place = tmp_path / "catalogs" / "shared.db", tmp_path / "lake"
    shared.parent.mkdir()
    send(bus, captures.entity, 1, 4)
    captures.run(place, catalog=f"sqlite:///{shared}", **ICEBERG)
    before = contents(place)
    send(bus, captures.entity, 5, 8)
    shared.parent.rename(tmp_path / "away")
    with pytest.raises(LakeFailed, match="unable to open database file"):
        captures.run(place)
    assert contents(place) == before
    (tmp_path / "away").rename(shared.parent)
    captures.run(place)
    assert len(captures.numbers(place)) == 8
