"""Doctor: what of this machine, or of its set-up, would give a bus trouble.

Each examination is a function that returns what it has found. Nothing is changed; in the data
directory a file is written, synced, locked and removed again.
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

from onibus.broker.admission import RESERVE_BYTES
from onibus.broker.namespace import NAME
from onibus.core.errors import AlreadyOpen, OnibusError
from onibus.server.connection_strings import CONNECTION_FILE
from onibus.server.data_directory import Directory
from onibus.store.connection import OLDEST_SQLITE, checksum_vfs, require_sqlite
from onibus.store.files import FileLock, free_bytes

GOOD = "good"
WARNING = "warning"
BAD = "bad"

OLDEST_PYTHON = (3, 11)
#: So many connections a server wants to hold, with some files besides.
OPEN_FILES_WANTED = 20_000
#: A sync that takes longer than this makes every single send that slow; one that takes less than
#: a disk can, did not reach it.
SYNC_SECONDS_SLOW = 0.020
SYNC_SECONDS_TOO_FAST = 0.000_03
SYNCS = 15
#: Before this the clock was never set.
EARLIEST = 1_735_689_600


class Examination(msgspec.Struct, frozen=True):
    """What was looked at, and how it is."""

    name: str
    #: good, warning or bad
    state: str
    found: str
    #: what to do, where it is not good
    advice: str = ""


def doctor(
    directory: Directory | None = None, *, host: str = "127.0.0.1", ports: Iterable[int] = ()
) -> list[Examination]:
    """Look at this machine; at a data directory and at ports to listen on, if they are given."""
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
        return Examination("uvloop", WARNING, "not there", "install uvloop: the server is faster")
    return Examination("uvloop", GOOD, "there")


def _open_files() -> Examination:
    # A server takes as many as it may have, whatever it begins with.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unbounded = hard == resource.RLIM_INFINITY
    words = "no limit" if unbounded else f"{hard} open files"
    if not unbounded and hard < OPEN_FILES_WANTED:
        advice = f"ulimit -n {OPEN_FILES_WANTED}, or LimitNOFILE= in the systemd unit"
        return Examination("open files", WARNING, words, advice)
    return Examination("open files", GOOD, words)


def _clock() -> Examination:
    wall, monotonic = time.time(), time.monotonic()
    time.sleep(0.02)
    drift = abs((time.time() - wall) - (time.monotonic() - monotonic))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall))
    if wall < EARLIEST:
        advice = "set the clock: stamps and schedules follow it"
        return Examination("clock", BAD, f"{now}: it was never set", advice)
    if drift > 0.5:
        advice = "find out who sets the clock in jumps"
        return Examination("clock", WARNING, f"it jumped by {drift:.1f} s just now", advice)
    return Examination("clock", GOOD, now)


def _port(host: str, port: int) -> Examination:
    name = f"port {port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        advice = "another program has it, perhaps a server that runs already: choose another port"
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
        return Examination(name, BAD, f"{there} is no directory", "choose another one")
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        advice = f"let the user of the server write there: chown {os.getuid()} {there}"
        return Examination(name, BAD, f"{there} cannot be written to", advice)
    words = str(directory) if there == directory else f"{directory} will be made"
    return Examination(name, GOOD, words)


def _locks(directory: Path, there: Path) -> Examination:
    """Show whether a server has the directory open, and what keeps a second one out."""
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
        advice = "do not delete *.lock while a server runs: only these keep a second server out"
        return Examination(name, WARNING, "this system cannot lock a database itself", advice)
    return Examination(name, GOOD, "a database is locked while it is open; none is open now")


def _readers(directory: Path) -> Examination:
    mode = directory.stat().st_mode & 0o777
    if mode & 0o007:
        advice = f"chmod 750 {directory}: messages, and the secret of tokens, are in there"
        return Examination("permissions", WARNING, f"{mode:o}: anybody can look into it", advice)
    return Examination("permissions", GOOD, f"{mode:o}")


def _credentials(directory: Path) -> Examination:
    """Say which key programs on this machine use: the emulator's is no longer one by default."""
    name, path = "credentials", directory / CONNECTION_FILE
    needs = "the well-known key works with --development only"
    if not path.exists():
        return Examination(name, GOOD, f"{path} is made at the first start; {needs}")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        advice = f"chmod 600 {path}, then rotate the key: it allows everything"
        return Examination(name, WARNING, f"{path} has mode {mode:o}: others can read it", advice)
    return Examination(name, GOOD, f"{path} has the key; {needs}")


def _space(directory: Path) -> Examination:
    free = free_bytes(str(directory))
    words = f"{free >> 20} MB free"
    if free < RESERVE_BYTES:
        advice = f"make room: below {RESERVE_BYTES >> 20} MB sends are refused"
        return Examination("disk space", BAD, words, advice)
    if free < 4 * RESERVE_BYTES:
        return Examination("disk space", WARNING, words, "make room before it is needed")
    return Examination("disk space", GOOD, words)


def _syncs(directory: Path) -> Examination:
    """Measure how long it takes until a few bytes are on the disk."""
    try:
        seconds = statistics.median(sync_times(directory))
    except OSError as error:
        return Examination("disk sync", BAD, str(error), "look at the disk")
    words = f"{seconds * 1000:.2f} ms"
    if seconds > SYNC_SECONDS_SLOW:
        return Examination("disk sync", WARNING, words, "use a faster disk: each send waits for it")
    if seconds < SYNC_SECONDS_TOO_FAST:
        advice = "it is memory, or a disk that lies: a power failure takes acknowledged messages"
        return Examination("disk sync", WARNING, words, advice)
    return Examination("disk sync", GOOD, words)


def sync_times(directory: Path) -> list[float]:
    """Return how long each of some small writes took to reach the disk, in seconds."""
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
