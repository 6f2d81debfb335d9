"""Doctor: problems of this machine or its configuration that would affect a bus.

Each examination is a function that returns its finding. Nothing changes, except that a file in the
data directory is written, synced, locked and removed.
"""

from __future__ import annotations

import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import apsw
import msgspec

from onibus.core.errors import AlreadyOpen, OnibusError
from onibus.directory.namespace import NAME
from onibus.server.connection_strings import CONNECTION_FILE
from onibus.server.data_directory import Directory
from onibus.shard.disk_room import RESERVE_BYTES
from onibus.store.connection import OLDEST_SQLITE, checksum_vfs, require_sqlite
from onibus.store.files import FileLock, free_bytes

GOOD = "good"
WARNING = "warning"
BAD = "bad"

OLDEST_PYTHON = (3, 11)
#: Open files for a server with many connections.
OPEN_FILES_WANTED = 20_000
#: A slower sync makes every single send that slow; a faster one than any disk allows did not reach
#: the disk.
SYNC_SECONDS_SLOW = 0.020
SYNC_SECONDS_TOO_FAST = 0.000_03
SYNCS = 15
#: A clock before this time was never set.
EARLIEST = 1_735_689_600


class Examination(msgspec.Struct, frozen=True):
    """Result of an examination."""

    name: str
    #: good, warning or bad
    state: str
    found: str
    #: what to do, if it is not good
    advice: str = ""


def doctor(
    directory: Directory | None = None, *, host: str = "127.0.0.1", ports: Iterable[int] = ()
) -> list[Examination]:
    """Examine this machine, and a data directory and ports if given."""
    found = [_python(), _sqlite(), _uvloop(), _open_files(), _clock()]
    found += [_port(host, port) for port in ports]
    if directory is not None:
        found += _directory(Path(directory).absolute())
    return found


def _python() -> Examination:
    version = sys.version_info
    words = ".".join(str(part) for part in version[:3])
    if version[:2] < OLDEST_PYTHON:
        return Examination("python", BAD, words, "use Python 3.11 or newer")
    return Examination("python", GOOD, words)


def _sqlite() -> Examination:
    version = apsw.sqlite_lib_version()
    try:
        require_sqlite(version)
        checksum_vfs()
    except OnibusError as error:
        oldest = ".".join(str(part) for part in OLDEST_SQLITE)
        return Examination("sqlite", BAD, str(error), f"install an apsw with SQLite {oldest}")
    return Examination("sqlite", GOOD, f"{version}, pages have checksums")


def _uvloop() -> Examination:
    if find_spec("uvloop") is None:
        return Examination("uvloop", WARNING, "not installed", "install uvloop for a faster server")
    return Examination("uvloop", GOOD, "installed")


def _open_files() -> Examination:
    # A server raises its soft limit to the hard one.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unbounded = hard == resource.RLIM_INFINITY
    words = "no limit" if unbounded else f"{hard} open files"
    if not unbounded and hard < OPEN_FILES_WANTED:
        advice = f"raise it: ulimit -n {OPEN_FILES_WANTED}, or LimitNOFILE= in the systemd unit"
        return Examination("open files", WARNING, words, advice)
    return Examination("open files", GOOD, words)


def _clock() -> Examination:
    wall, monotonic = time.time(), time.monotonic()
    time.sleep(0.02)
    drift = abs((time.time() - wall) - (time.monotonic() - monotonic))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall))
    if wall < EARLIEST:
        advice = "set the clock: enqueued times and schedules use it"
        return Examination("clock", BAD, f"{now}: never set", advice)
    if drift > 0.5:
        advice = "find the program that sets the clock in steps"
        return Examination("clock", WARNING, f"jumped by {drift:.1f} s during this check", advice)
    return Examination("clock", GOOD, now)


def _port(host: str, port: int) -> Examination:
    name = f"port {port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        advice = "in use, perhaps by a running server: choose another port"
        return Examination(name, BAD, f"{host}: {error.strerror or error}", advice)
    return Examination(name, GOOD, f"free on {host}")


# The data directory


def _directory(directory: Path) -> list[Examination]:
    there = directory
    while not there.exists() and there != there.parent:
        there = there.parent
    access = _access(directory, there)
    if access.state == BAD:
        return [access]
    own = [_readers(there), _credentials(directory), _locks(directory, there)]
    return [access, _space(there), _syncs(there), *own]


def _access(directory: Path, there: Path) -> Examination:
    name = "data directory"
    if not there.is_dir():
        return Examination(name, BAD, f"{there} is not a directory", "choose another one")
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        advice = f"let the server's user write there: chown {os.getuid()} {there}"
        return Examination(name, BAD, f"cannot write to {there}", advice)
    words = str(directory) if there == directory else f"{directory} will be created"
    return Examination(name, GOOD, words)


def _locks(directory: Path, there: Path) -> Examination:
    """Return whether a server has the directory open, and what excludes a second one."""
    name, store = "file locks", directory / f"{NAME}.sqlite"
    probe = there / f".onibus-doctor-{os.getpid()}"
    try:
        if store.exists():
            FileLock(str(store), shared=True).release()
        lock = FileLock(str(probe))
        lock.release()
    except AlreadyOpen:
        return Examination(name, GOOD, "a server has the directory open")
    except OSError as error:
        return Examination(name, BAD, str(error), "use a local file system")
    finally:
        for path in (probe, Path(f"{probe}.lock")):
            path.unlink(missing_ok=True)
    if not lock.on_database:
        advice = "do not delete *.lock while a server runs: they exclude a second server"
        return Examination(name, WARNING, "this system cannot lock a database file", advice)
    return Examination(name, GOOD, "databases are locked while open; none is open now")


def _readers(directory: Path) -> Examination:
    mode = directory.stat().st_mode & 0o777
    if mode & 0o007:
        advice = f"chmod 750 {directory}: it holds messages and the secret of lock tokens"
        return Examination("permissions", WARNING, f"{mode:o}: other users can read it", advice)
    return Examination("permissions", GOOD, f"{mode:o}")


def _credentials(directory: Path) -> Examination:
    """Return the key that local programs use: the emulator's is not accepted by default."""
    name, path = "credentials", directory / CONNECTION_FILE
    needs = "the well-known key works only with --development"
    if not path.exists():
        return Examination(name, GOOD, f"{path} is created at the first start; {needs}")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        advice = f"chmod 600 {path}, then rotate the key: it has all rights"
        return Examination(
            name, WARNING, f"{path} has mode {mode:o}: other users can read it", advice
        )
    return Examination(name, GOOD, f"{path} has the key; {needs}")


def _space(directory: Path) -> Examination:
    free = free_bytes(str(directory))
    words = f"{free >> 20} MB free"
    if free < RESERVE_BYTES:
        advice = f"free some space: sends are rejected below {RESERVE_BYTES >> 20} MB"
        return Examination("disk space", BAD, words, advice)
    if free < 4 * RESERVE_BYTES:
        return Examination("disk space", WARNING, words, "free some space soon")
    return Examination("disk space", GOOD, words)


def _syncs(directory: Path) -> Examination:
    """Measure the time until a few bytes are on disk."""
    try:
        seconds = statistics.median(sync_times(directory))
    except OSError as error:
        return Examination("disk sync", BAD, str(error), "check the disk")
    words = f"{seconds * 1000:.2f} ms"
    if seconds > SYNC_SECONDS_SLOW:
        return Examination(
            "disk sync", WARNING, words, "use a faster disk: each send waits for a sync"
        )
    if seconds < SYNC_SECONDS_TOO_FAST:
        advice = "memory, or a disk that ignores syncs: a power failure loses acknowledged messages"
        return Examination("disk sync", WARNING, words, advice)
    return Examination("disk sync", GOOD, words)


def sync_times(directory: Path) -> list[float]:
    """Return the seconds that each of some small writes took to reach the disk."""
    path = directory / f".onibus-doctor-{os.getpid()}"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        times = []
        for _ in range(SYNCS):
            os.write(handle, b"x" * 4096)
            began = time.perf_counter()
            os.fsync(handle)
            times.append(time.perf_counter() - began)
        return times
    finally:
        os.close(handle)
        os.unlink(path)
