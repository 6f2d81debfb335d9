"""The catalog of a lake's Iceberg tables: a SQLite file in the lake, or one that the user names.

    <lake>/iceberg.db    the catalog `onibus` of a local lake, unless another is named

Another catalog is an address (`sqlite:///…`, `postgresql+psycopg2://…`, `https://…`), or the name
of one in pyiceberg's configuration, which is the place for passwords and tokens: a lake records no
secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from onibus.core.errors import InvalidArgument
from onibus.extras import explained
from onibus.spark.lake_files import LakeFailed, absolute
from onibus.spark.lake_reaching import address_of as shown

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: The catalog's name where a program asks for one: SQL catalogs keep tables by it.
NAME = "onibus"
OWN_FILE = "iceberg.db"
#: SQL tables of a catalog. pyiceberg creates each if it is missing, and fails if another program
#: creates it at the same moment.
_SQL_TABLES = 2
#: Formats of tables; Iceberg tables are made of Delta tables, and next to them.
DELTA, ICEBERG = "delta", "iceberg"
FORMATS = (DELTA, ICEBERG)
#: How long a capture waits for another program that uses the catalog in its lake.
_PATIENCE_S = 60


#: A password before the @ of an address, even one with a slash, or a secret among its options.
_SECRET = re.compile(
    r"://[^/@:]*:(?!\d{1,5}(/|$))[^?]*@|[?&;][^=&;]*(pass|pwd|secret|token|credential|sig)[^=&;]*=",
    re.IGNORECASE,
)


def check_tables(table: str | None, catalog: str | None) -> None:
    """Reject a format of tables that does not exist, and a catalog that cannot be used."""
    if table not in (None, *FORMATS):
        raise InvalidArgument(f"the table format is {table!r}: use delta or iceberg")
    if catalog is None:
        return
    if table != ICEBERG:
        raise InvalidArgument("--catalog is for Iceberg tables: add --table iceberg")
    if _SECRET.search(catalog):
        raise InvalidArgument(
            "the address of a catalog must not have a password or a token, because the lake "
            "records it: name a catalog of pyiceberg's configuration, or use PGPASSWORD"
        )


def check_place(place: str, catalog: str) -> None:
    """Reject a lake whose address pyiceberg cannot read, or that needs another catalog."""
    whole = _local(place)
    if "://" in whole and not catalog:
        raise InvalidArgument(
            f"the lake {shown(place)!r} is not on this machine, where a catalog in a SQLite file "
            "would be: name a catalog with --catalog"
        )
    if place.startswith("file://") and "%" in place:
        raise InvalidArgument(
            f"a lake with Iceberg tables cannot have '%' in its address: {shown(place)!r}. Use the "
            "folder without file://"
        )
    if any(sign in whole for sign in "?#"):
        raise InvalidArgument(
            f"a lake with Iceberg tables cannot have '?' or '#' in its address: {shown(place)!r}"
        )


def address_of(place: str, catalog: str) -> str:
    """Return how a user names a catalog."""
    return catalog or f"{_local(place)}/{OWN_FILE}"


def _local(place: str) -> str:
    return absolute(place).removeprefix("file://").rstrip("/")


def open_catalog(place: str, catalog: str) -> Catalog:
    """Open the catalog of a lake; its own file is made if it is missing."""
    with explained():
        import pyiceberg.catalog  # noqa: F401
    if catalog and "://" not in catalog:
        return _opened(catalog)
    if catalog:
        return _opened(NAME, uri=catalog)
    file = address_of(place, "")
    if not os.path.exists(file):
        _make(file)
    return _opened(NAME, uri=_address_of_file(file))


def _opened(name: str, **properties: str) -> Catalog:
    from pyiceberg.catalog import load_catalog
    from sqlalchemy.exc import DBAPIError

    for _ in range(_SQL_TABLES):
        try:
            return load_catalog(name, **properties)
        except DBAPIError as error:
            if "already exists" not in str(error.orig):
                raise
    return load_catalog(name, **properties)


def _make(file: str) -> None:
    """Make the file of a catalog; a reader that sees it sees it with its tables."""
    unfinished = f"{file}.{uuid4().hex}"
    try:
        _opened(NAME, uri=_address_of_file(unfinished)).close()
        # Another program was faster, or the file system has no links: it is made in its place.
        with suppress(OSError):
            os.link(unfinished, file)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)


def _address_of_file(file: str) -> str:
    from sqlalchemy import URL

    # A reader holds the file for a moment, which is longer on a busy machine.
    query = {"timeout": str(_PATIENCE_S)}
    return URL.create("sqlite", database=file, query=query).render_as_string()


@contextmanager
def plainly(address: str) -> Iterator[None]:
    """Turn what libraries raise about a catalog, or a table in it, into one sentence."""
    from pyiceberg import exceptions
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except Exception as error:
        # pyiceberg's errors have no base class.
        known = isinstance(error, RequestException | SQLAlchemyError | OSError | ValueError)
        if not known and type(error).__module__ != exceptions.__name__:
            raise
        cause = getattr(error, "orig", None) or error
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0].rstrip(".")
        if address.endswith(f"/{OWN_FILE}") and "not a database" in reason:
            raise LakeFailed(
                f"{address} is damaged: {reason}. Delete it, then run onibus pipeline register, "
                "which makes it again"
            ) from None
        raise LakeFailed(
            f"cannot use the Iceberg catalog {address}: {reason}. Check that it runs, its address "
            "and its permissions, then capture again. If the lake was moved, run onibus pipeline "
            "register. --table delta stops writing Iceberg tables"
        ) from None
