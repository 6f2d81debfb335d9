"""Lakes at addresses that do not answer: one sentence, soon, and no secret in it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, Table, create_engine, event
from sqlalchemy.schema import CreateTable

from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.spark import lake_reaching
from onibus.spark.iceberg_catalog import check_place, check_tables, open_catalog
from onibus.spark.lake import Lake
from onibus.spark.lake_files import LakeFailed
from onibus.spark.lake_reaching import address_of
from onibus.spark.lake_tables import open_lake
from tests.server.processes import environment


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1%3A{listener.getsockname()[1]}"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_reaching, "ANSWER_S", 0.5)
    monkeypatch.setattr(lake_reaching, "_asked", {})


@pytest.mark.parametrize(
    "place",
    [
        "gs://anonymous@bucket/lake?scheme=http&endpoint_override=HOST&retry_limit_seconds=900",
        "s3://key:word@bucket/lake?scheme=http&endpoint_override=HOST&region=here",
        "hdfs://someone@127.0.0.1:1/lake",
    ],
)
@pytest.mark.usefixtures("impatient")
def test_an_address_that_does_not_answer_is_an_error_soon(silent: str, place: str) -> None:
    lake = Lake(place.replace("HOST", silent), "orders")
    with pytest.raises(LakeFailed, match=r"^cannot reach the lake \w+://\S+/lake: ") as raised:
        lake.manifest_or_none()
    assert "word" not in str(raised.value)
    # It is not asked for each entity again.
    with pytest.raises(LakeFailed) as again:
        Lake(lake.place, "payments").about()
    assert str(again.value) == str(raised.value)


def test_azure_without_credentials_does_not_end_the_process(tmp_path: Path) -> None:
    place = "abfss://orders@no-such-account-of-onibus.dfs.core.windows.net/lake"
    none = dict.fromkeys(("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"), "")
    done = subprocess.run(
        [sys.executable, "-m", "onibus", "pipeline", "audit", "q", "--no-broker", "--lake", place],
        cwd=tmp_path,
        env=environment(**none),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert f"cannot reach the lake {place}: " in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.usefixtures("impatient")
def test_a_library_that_ends_its_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = "import os, sys; print('  what():  no token', file=sys.stderr, flush=True); os.abort()"
    monkeypatch.setattr(lake_reaching, "_PROBE", crash)
    monkeypatch.setattr(lake_reaching, "ANSWER_S", 60.0)
    with pytest.raises(LakeFailed, match=r"cannot reach the lake abfss://a@b/c: no token\. Check"):
        Lake("abfss://a@b/c", "orders").about()


@pytest.mark.parametrize("place", ["https://host/lake", "abfss://c:word@host/lake?key=word"])
def test_an_address_without_a_file_system_is_rejected(place: str) -> None:
    with pytest.raises(InvalidOperation, match=r"cannot open the lake '\w+://.*Use a") as raised:
        Lake(place, "orders").about()
    assert ":word" not in str(raised.value)


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ("s3://key:word@bucket/lake?region=here", "s3://bucket/lake"),
        ("gs://anonymous@bucket/lake/", "gs://bucket/lake"),
        ("abfss://container:word@account.dfs.core.windows.net/lake",
         "abfss://container@account.dfs.core.windows.net/lake"),
        ("abfss://:word@account.blob.core.windows.net/c/lake",
         "abfss://account.blob.core.windows.net/c/lake"),
        ("s3://KEY:wo/rd@bucket/lake", "s3://bucket/lake"),
        ("s3a://KEY:word/@bucket/a/b", "s3a://bucket/a/b"),
        ("hdfs://name:8020/lakes/a@b", "hdfs://name:8020/lakes/a@b"),
        ("s3://bucket/a:b/c@d", "s3://bucket/a:b/c@d"),
        ("hdfs://someone@name:8020/lake", "hdfs://someone@name:8020/lake"),
        ("file:///lakes/one", "file:///lakes/one"),
    ],
)  # fmt: skip
def test_addresses_are_shown_without_secrets_and_with_their_hosts(place: str, address: str) -> None:
    assert address_of(place) == address
    assert Lake(place, "orders").address("messages") == f"{address}/orders/messages"


def test_an_iceberg_catalog_is_opened_while_another_program_creates_its_tables(
    tmp_path: Path,
) -> None:
    created = []

    def create(table: Table, connection: Connection, **_: object) -> None:
        if table.name not in created:
            created.append(table.name)
            with create_engine(connection.engine.url).begin() as other:
                other.execute(CreateTable(table))

    event.listen(Table, "before_create", create)
    try:
        with closing(open_catalog(str(tmp_path), "")) as catalog:
            assert catalog.list_namespaces() == []
    finally:
        event.remove(Table, "before_create", create)
    assert len(created) == 2


@pytest.mark.parametrize(
    "catalog",
    [
        "postgresql+psycopg2://me:secret@host/db",
        "postgresql+psycopg2://me:sec/ret@host/db",
        "postgresql+psycopg2://host/db?user=me&password=secret",
        "https://host/catalog?token=secret",
        "https://host/catalog?OAuth2_Credential=secret",
    ],
)
def test_a_catalog_with_a_secret_is_rejected_because_the_lake_records_it(catalog: str) -> None:
    with pytest.raises(InvalidArgument, match="password or a token") as raised:
        check_tables("iceberg", catalog)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "catalog",
    [
        "postgresql+psycopg2://me@host:5432/db",
        "postgresql+psycopg2://host:5432/db?user=me@here",
        "sqlite:////lakes/a:b@c.db",
        "https://host:8181/catalog?warehouse=w",
        "named",
    ],
)
def test_a_catalog_without_a_secret_is_accepted(catalog: str) -> None:
    check_tables("iceberg", catalog)


def test_a_lake_that_iceberg_rejects_is_named_without_its_secrets() -> None:
    for catalog in ("", "named"):
        with pytest.raises(InvalidArgument, match="s3://bucket/lake") as raised:
            check_place("s3://key:word@bucket/lake?region=here", catalog)
        assert "word" not in str(raised.value)


def test_a_lake_that_iceberg_reads_elsewhere_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="without file://"):
        check_place("file:///my%20lake", "")
    check_place("/my%20lake", "")


def test_a_lake_without_tables_is_named_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lake, "about", lambda lake: None)
    with pytest.raises(InvalidOperation, match="s3://bucket/lake") as raised:
        open_lake(None, "s3://key:word@bucket/lake", "orders")  # type: ignore[arg-type]
    assert "word" not in str(raised.value)
