"""Files of the stores of a bus."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import apsw

from onibus.core.errors import InvalidArgument
from onibus.directory.namespace import NAME, STORE_ROW
from onibus.store.connection import close, open_to_look, translate
from onibus.store.sql import READ_META
from onibus.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from onibus.bus import Bus

Directory = str | os.PathLike[str]
#: Directories of stores outside the data directory, by store name.
Places = Mapping[str, Directory]


def paths_of(bus: Bus) -> dict[str, str]:
    """Return the files of all stores of an open bus, the namespace's first."""
    broker = bus.broker
    stores: dict[str, Any] = {NAME: broker.namespace.store}
    for name, one in broker.stores.items():
        stores[name] = None if one.loop is None else one.loop.store
    for name, store in stores.items():
        if store is None:
            raise InvalidArgument(f"store {name} is unavailable: a backup needs all stores")
        if not isinstance(store, SqliteStore):
            raise InvalidArgument("an ephemeral bus has no files to back up")
    return {name: store.path for name, store in stores.items()}


def find_paths(directory: Directory, places: Places | None = None) -> dict[str, str]:
    """Return the files of all stores that a directory's namespace records, its own first."""
    root = Path(directory).absolute()
    own = root / f"{NAME}.sqlite"
    if not own.is_file():
        raise InvalidArgument(f"{root} is not a data directory: it has no {own.name}")
    found = {NAME: str(own)}
    for name in known_stores(str(own)):
        place = Path((places or {}).get(name, root)).absolute()
        found[name] = str(place / f"{name}.sqlite")
    return found


def missing(paths: Mapping[str, str]) -> list[str]:
    """Return the names of stores whose files are missing."""
    return [name for name, path in paths.items() if not os.path.isfile(path)]


def known_stores(namespace: str) -> dict[str, bytes]:
    """Return the identities of the stores that a namespace records, by name."""
    connection = None
    try:
        connection = open_to_look(namespace)
        rows = connection.execute(READ_META).fetchall()
    except apsw.Error as error:
        raise translate(error, f"reading {namespace}") from error
    finally:
        if connection is not None:
            close(connection)
    return {
        name.removeprefix(STORE_ROW): value
        for name, value in cast("list[tuple[str, Any]]", rows)
        if name.startswith(STORE_ROW) and isinstance(value, bytes)
    }
