"""Restore: a data directory recreated from a backup (backup.py).

A restored bus is distinct from the copied one, and both may be opened later. So its stores get new
identities: a mix of their files does not go unnoticed. Their boot counts are raised, so that lock
tokens issued by the other bus since the copy hold nothing here. Each store gets a witness, which
its first opening expects.

Databases have temporary names until all are complete. Then the namespace's own is renamed first. A
bus that opens after an interrupted restore finds either nothing, or a namespace that reports
missing stores. It never finds stores without a namespace, whose messages it would take for
leftovers of deleted entities.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

import apsw

from onibus.core.errors import Damaged, InvalidArgument, StoreFailed
from onibus.directory.namespace import NAME, STORE_ROW
from onibus.server.backup import (
    Manifest,
    Progress,
    Room,
    StoreCopy,
    chunks,
    counted,
    file_rows,
    make_empty,
    read_file,
    sync_file,
    verify,
)
from onibus.server.data_directory import Directory, Places
from onibus.store import witness
from onibus.store.block_files import DirectoryFiles
from onibus.store.connection import checksum_vfs, close
from onibus.store.files import sync_directory
from onibus.store.sql import BEGIN, COMMIT

#: Suffix of a database until all are complete.
_UNFINISHED = ".restoring"
#: Added to the boot count of a restored store: no other copy of it gets there.
_BOOTS = 1_000_000


def restore(
    source: Directory,
    directory: Directory,
    *,
    places: Places | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Create a data directory from a backup; reject a damaged backup, or a target that has files.

    `places` are directories for stores outside the data directory. `progress` reports each store
    twice: during verification and during the copy.
    """
    manifest = verify(source, progress)
    names = [store.name for store in manifest.stores]
    if NAME not in names:
        raise Damaged(f"{source} has no namespace")
    unknown = set(places or ()) - set(names) | ({NAME} & set(places or ()))
    if unknown:
        raise InvalidArgument(f"the backup has no message store {min(unknown)!r}: check --store")
    root = Path(directory).absolute()
    homes = {name: Path((places or {}).get(name, root)).absolute() for name in names}
    make_empty(*sorted({root, *homes.values()}))
    for home in set(homes.values()):
        mine = [store for store in manifest.stores if homes[store.name] == home]
        Room(home, (), 0).require(sum(store.bytes + store.block_bytes for store in mine))
    identities = {name: uuid.uuid4().bytes for name in names}
    try:
        for store in manifest.stores:
            _copy(Path(source), homes[store.name], store, progress)
        for name in names:
            _make_new(homes[name] / f"{name}.sqlite{_UNFINISHED}", name, identities)
        for store in manifest.stores:
            _witness(homes[store.name] / f"{store.name}.sqlite", store, identities[store.name])
        _finish(homes)
    except (apsw.Error, OSError) as error:
        raise StoreFailed(f"cannot restore to {root}: {error}") from error
    return manifest


def _copy(source: Path, home: Path, store: StoreCopy, progress: Progress | None) -> None:
    made = home / f"{store.name}.sqlite"
    original = str(source / f"{store.name}.sqlite")
    done = counted(store, progress)
    handle = os.open(f"{made}{_UNFINISHED}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        for chunk in chunks(original):
            file.write(chunk)
            done(len(chunk))
    with contextlib.closing(DirectoryFiles(f"{made}.blocks")) as files:
        for block, expected in file_rows(original):
            payload = read_file(original, block, expected)
            files.write([(block, payload)])
            done(len(payload))


def _make_new(path: Path, name: str, identities: dict[str, bytes]) -> None:
    """Give a store a new identity."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READWRITE, checksum_vfs())
    try:
        connection.execute(BEGIN)
        _set(connection, "identity", identities[name])
        connection.execute(f"UPDATE meta SET value = value + {_BOOTS} WHERE name = 'boot'")
        if name == NAME:
            for other, identity in identities.items():
                if other != NAME:
                    _set(connection, STORE_ROW + other, identity)
        connection.execute(COMMIT)
    finally:
        # The last connection to close merges the log into the file.
        close(connection)
    sync_file(str(path))


def _witness(path: Path, store: StoreCopy, identity: bytes) -> None:
    made = witness.Witness(f"{path}.witness", identity)
    made.settle(store.position, os.stat(f"{path}{_UNFINISHED}").st_size)
    made.close()


def _set(connection: apsw.Connection, name: str, value: bytes) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))


def _finish(homes: dict[str, Path]) -> None:
    for name in sorted(homes, key=lambda name: name != NAME):
        made = homes[name] / f"{name}.sqlite"
        _rename(f"{made}{_UNFINISHED}", str(made))
        sync_directory(str(homes[name]))


def _rename(old: str, new: str) -> None:
    """Rename a file; fail if a server started in the meantime has created one of that name."""
    try:
        os.link(old, new)
    except PermissionError:
        # A file system without hard links.
        if os.path.exists(new):
            raise FileExistsError(f"another program has created {new}") from None
        os.rename(old, new)
    else:
        os.unlink(old)
