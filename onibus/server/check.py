"""Check: verification of a data directory that no process has open. It changes nothing.

First each store: its length and last commit against its witness, its identity, the checksum of
every page, SQLite's own structure, and every block and row. Then the whole: the bus opens on stores
that only pretend to write, and the invariants of every partition are checked (core/invariants.py).
Finally it lists unknown files.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

from onibus.core.block import verify
from onibus.core.errors import AlreadyOpen, Damaged, InvalidArgument, OnibusError, StoreFailed
from onibus.core.invariants import violations
from onibus.core.records import BLOCK_INDEX, BLOCKS, FORMAT_VERSION, STAGED
from onibus.core.staged import facts_of
from onibus.directory.namespace import NAME
from onibus.gateway.broker import Broker
from onibus.server.backup import MANIFEST
from onibus.server.connection_strings import CONNECTION_FILE
from onibus.server.data_directory import Directory, Places, find_paths, known_stores
from onibus.server.findings import ERROR, NOTICE, WARNING, Finding
from onibus.server.tls import CERTIFICATE_FILE, KEY_FILE
from onibus.shard.clock import SystemClock
from onibus.shard.pages import load_block
from onibus.shard.writer import Done, Work
from onibus.store import witness
from onibus.store.connection import OLDEST_FORMAT, translate
from onibus.store.files import FileLock
from onibus.store.rehearsal import Rehearsal

#: Maximum findings of one kind in one place: a damaged disk has thousands.
FINDINGS_MAX = 100

_RESTORE = "restore the store's files from a backup"
#: Files that the server or a backup keeps next to the stores.
_OTHER_FILES = (MANIFEST, CONNECTION_FILE, CERTIFICATE_FILE, KEY_FILE)
_SUFFIXES = (
    "",
    "-wal",
    "-shm",
    "-journal",
    ".lock",
    ".witness",
    ".witness.new",
    ".probe",
    ".blocks",
)


class Report(msgspec.Struct, kw_only=True):
    """Scope and findings of a check."""

    directory: str
    findings: list[Finding] = []
    stores: int = 0
    entities: int = 0
    partitions: int = 0
    messages: int = 0
    blocks: int = 0
    bytes: int = 0

    @property
    def sound(self) -> bool:
        """Return whether nothing is damaged."""
        return not any(finding.severity == ERROR for finding in self.findings)


#: Called with the part that is being checked.
Progress = Callable[[str], None]


def check(
    directory: Directory, *, places: Places | None = None, progress: Progress | None = None
) -> Report:
    """Check a data directory or a backup; reject one that is in use."""
    report = Report(directory=str(Path(directory).absolute()))
    tell = progress or (lambda _: None)
    try:
        paths = find_paths(directory, places)
    except (Damaged, StoreFailed) as error:
        report.findings.append(Finding(ERROR, NAME, str(error), _RESTORE))
        return report
    report.stores = len(paths)
    with contextlib.ExitStack() as locks:
        for path in paths.values():
            if os.path.exists(path):
                locks.callback(_lock(path).release)
        identities = known_stores(paths[NAME])
        bad = set()
        for name, path in paths.items():
            tell(f"store {name}")
            found = list(_store(name, path, identities.get(name), report))
            report.findings += found
            if any(finding.severity == ERROR for finding in found):
                bad.add(name)
        if NAME not in bad:
            tell("all partitions")
            report.findings += _together(paths, bad, report)
        report.findings += _strangers(paths, Path(report.directory))
    return report


def _lock(path: str) -> FileLock:
    try:
        return FileLock(path, shared=True)
    except AlreadyOpen:
        raise InvalidArgument(f"{path} is in use: stop the server, or check a backup") from None


# Each store


def _store(name: str, path: str, identity: bytes | None, report: Report) -> Iterator[Finding]:
    if not os.path.isfile(path):
        yield Finding(ERROR, name, f"{path} is missing", f"mount its disk, or {_RESTORE}")
        return
    report.bytes += os.stat(path).st_size
    try:
        testimony = witness.read(path + ".witness")
    except (Damaged, OSError) as error:
        yield Finding(ERROR, name, str(error), "if there is no other finding, remove that file")
        testimony = None
    if testimony is not None and os.stat(path).st_size < testimony.length:
        yield Finding(ERROR, name, f"{path} is truncated", _RESTORE)
        return
    try:
        store = Rehearsal(path, name)
    except OnibusError as error:
        yield Finding(ERROR, name, str(error), _RESTORE)
        return
    with contextlib.closing(store):
        try:
            yield from _own_rows(store, identity, testimony)
            yield from _pages(store)
            yield from _blocks(store, report)
            yield from _files(store, report)
        except OnibusError as error:
            yield Finding(ERROR, name, str(error), _RESTORE)


def _own_rows(
    store: Rehearsal, identity: bytes | None, testimony: witness.Testimony | None
) -> Iterator[Finding]:
    own = store.own
    if {"format", "identity", "name", "position"} - own.keys():
        yield Finding(ERROR, store.name, "the rows that identify the store are missing", _RESTORE)
        return
    if not isinstance(own["format"], int) or own["format"] < OLDEST_FORMAT:
        what = f"unknown format {own['format']!r}"
        yield Finding(ERROR, store.name, what, _RESTORE)
        return
    if own["format"] > FORMAT_VERSION:
        advice = "check it with the version of onibus that wrote it, or a later one"
        yield Finding(ERROR, store.name, f"unsupported format {own['format']}", advice)
    if own["name"] != store.name:
        yield Finding(
            ERROR, store.name, f"the file holds store {own['name']!r}", "put the right file back"
        )
    if identity not in (None, store.identity):
        advice = "put the right file back"
        yield Finding(ERROR, store.name, "not the store that the namespace records", advice)
    if testimony is None:
        if own["position"] and not os.path.exists(f"{store.path}.witness"):
            copied = os.path.exists(os.path.join(os.path.dirname(store.path), MANIFEST))
            what = "no witness: lost commits would go unnoticed"
            advice = "" if copied else "compare it with a backup, unless you removed the witness"
            yield Finding(NOTICE if copied else WARNING, store.name, what, advice)
        return
    if testimony.store != store.identity:
        yield Finding(ERROR, store.name, "not the store that its witness records", _RESTORE)
    elif testimony.position > own["position"]:
        lost = testimony.position - own["position"]
        yield Finding(ERROR, store.name, f"the last {lost} commits are lost", _RESTORE)
    elif not testimony.whole:
        what = "part of its witness is damaged: lost commits may go unnoticed"
        advice = "normal after a power failure; otherwise compare the store with a backup"
        yield Finding(WARNING, store.name, what, advice)


def _pages(store: Rehearsal) -> Iterator[Finding]:
    """Read every page, which verifies its checksum, and let SQLite check its structure."""
    if store.connection.pragma("checksum_verification") != "1":
        yield Finding(ERROR, store.name, "pages have no checksums", _RESTORE)
    try:
        rows = store.connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})").fetchall()
    except apsw.Error as error:
        raise translate(error, f"reading {store.path}") from error
    for (words,) in cast("list[tuple[str]]", rows):
        if words != "ok":
            yield Finding(ERROR, store.name, words, _RESTORE)


def _blocks(store: Rehearsal, report: Report) -> Iterator[Finding]:
    """Read every row of every block."""
    listed: Any = dict(cast("Any", store.scan(BLOCK_INDEX, ("block", "rows"))))
    rows_staged = cast("Iterator[tuple[bytes]]", store.scan(STAGED, ("content",)))
    staged = {block for (content,) in rows_staged for block in facts_of(content).blocks}
    seen = set()
    bad = 0
    for (block,) in cast("Iterator[tuple[int]]", store.scan(BLOCKS, ("block",))):
        seen.add(block)
        report.blocks += 1
        try:
            what = _read_all(store, block, listed.get(block), block in staged)
        except OnibusError as error:
            what = str(error)
        if what and bad < FINDINGS_MAX:
            bad += 1
            yield Finding(ERROR, store.name, f"block {block}: {what}", _RESTORE)
    for block in sorted((listed.keys() | staged) - seen)[:FINDINGS_MAX]:
        yield Finding(ERROR, store.name, f"block {block} is missing", _RESTORE)


def _read_all(store: Rehearsal, number: int, rows: int | None, staged: bool) -> str:
    """Read a whole block; return its problem, or an empty string."""
    row: Any = store.read(BLOCKS, (number,))
    if row is None or not isinstance(row[-1], bytes):
        return "its file is missing"
    if rows is None:
        verify(row[-1])
        return "" if staged else "not in any index"
    block = load_block(store, number)
    assert block is not None
    for position in range(block.rows):
        block.message(position)
    return "" if rows == block.rows else f"{block.rows} rows, not {rows}"


def _files(store: Rehearsal, report: Report) -> Iterator[Finding]:
    """Find block files without a row."""
    directory = store.path + ".blocks"
    if not os.path.isdir(directory):
        return
    blocks = {str(block) for (block,) in store.scan(BLOCKS, ("block",))}
    for entry in sorted(Path(directory).iterdir()):
        report.bytes += entry.stat().st_size
        if not entry.name.isdecimal():
            yield Finding(NOTICE, store.name, f"{entry} is not an Onibus file")
        elif entry.name not in blocks:
            advice = "no action needed: the server removes it when it starts"
            yield Finding(NOTICE, store.name, f"{entry} is left over from a crash", advice)


# All stores together


class _AtOnce:
    """A writer that writes immediately, on the calling thread."""

    def submit(self, work: Work, done: Done) -> None:
        error: BaseException | None = None
        try:
            work()
        except OnibusError as raised:
            error = raised
        done(error)

    run_here = submit

    def stop(self) -> None:
        """Return at once: no write is in progress."""


def _together(paths: dict[str, str], bad: set[str], report: Report) -> Iterator[Finding]:
    """Open the bus on stores that only pretend to write, and check every partition."""

    def open_store(name: str, _known: bool) -> Rehearsal:
        if name in bad:
            raise Damaged("already checked")
        return Rehearsal(paths[name], name)

    soon: deque[Callable[[], None]] = deque()
    names = [name for name in paths if name != NAME]
    broker = Broker(SystemClock(), names, open_store, lambda _: _AtOnce(), soon.append, 0)
    try:
        broker.open()
        while soon:
            soon.popleft()()
        report.entities = len(broker.namespace.entities)
        yield from _partitions(broker, bad, report)
    except OnibusError as error:
        if not bad:
            yield Finding(ERROR, NAME, f"cannot be opened: {error}", _RESTORE)
    finally:
        broker.close()


def _partitions(broker: Broker, bad: set[str], report: Report) -> Iterator[Finding]:
    for store in broker.stores.values():
        if store.error is not None and store.name not in bad:
            yield Finding(ERROR, store.name, str(store.error), _RESTORE)
        for partition in store.partitions.values():
            report.partitions += 1
            where = f"partition {partition.index} of {partition.entity.name}"
            if partition.core is None:
                if store.error is None:
                    yield Finding(ERROR, where, f"cannot be loaded: {partition.offline}", _RESTORE)
                continue
            for part in partition.core.subscriptions.values():
                report.messages += part.log.next_ordinal - 1 - part.gone.count
            try:
                words = violations(partition.core)
            except OnibusError as error:
                words = [str(error)]
            for one in words[:FINDINGS_MAX]:
                yield Finding(ERROR, where, one, "keep the files and report a bug")


def _strangers(paths: dict[str, str], root: Path) -> Iterator[Finding]:
    """Find files next to the stores that belong to none."""
    known = {Path(path + suffix) for path in paths.values() for suffix in _SUFFIXES}
    for home in sorted({root, *(Path(path).parent for path in paths.values())}):
        if not home.is_dir():
            continue
        for entry in sorted(home.iterdir()):
            if entry in known or entry.name in _OTHER_FILES:
                continue
            if entry.suffix == ".sqlite":
                advice = "check the directory: the namespace does not record this store"
                yield Finding(WARNING, str(entry), "unknown store", advice)
            elif ".sqlite.cut-" in entry.name or entry.name.endswith(".restoring"):
                what = "left over from an interrupted backup or restore"
                yield Finding(NOTICE, str(entry), what, "remove it")
            else:
                yield Finding(NOTICE, str(entry), "not an Onibus file")
