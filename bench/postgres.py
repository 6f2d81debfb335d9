"""A private PostgreSQL cluster, as a yardstick; if it is not installed the bench says so."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

#: Where Debian keeps the programs of a cluster, which are not on the path of users.
_DEBIAN = "/usr/lib/postgresql"
#: PostgreSQL refuses to run as root; its package makes this user.
_USER = "postgres"


def programs() -> Path | None:
    """Return the directory with initdb, pg_ctl and psql, or None."""
    found = shutil.which("initdb")
    candidates = [Path(found).resolve().parent] if found else []
    if os.path.isdir(_DEBIAN):
        candidates += sorted(Path(_DEBIAN).glob("*/bin"), reverse=True)
    for place in candidates:
        if all((place / name).exists() for name in ("initdb", "pg_ctl", "psql", "postgres")):
            return place
    return None


class Cluster:
    """A running server that listens on a socket in its own directory only."""

    def __init__(self, place: Path, folder: Path) -> None:
        self._place = place
        self._folder = folder
        self._user = _USER if os.geteuid() == 0 else None
        self._data = folder / "data"

    def run(self, program: str, *arguments: str, text: str | None = None) -> str:
        done = subprocess.run(
            [self._place / program, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            user=self._user,
            cwd=self._folder,
        )
        return done.stdout

    def start(self) -> None:
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self.run("initdb", "-D", str(self._data), "-U", "bench", "--auth", "trust")
        options = f"-k {self._folder} -c listen_addresses='' -c max_wal_size=4GB"
        log = str(self._folder / "log")
        self.run("pg_ctl", "-D", str(self._data), "-o", options, "-l", log, "-w", "start")

    @property
    def process(self) -> int:
        """The process that all others are children of."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def sql(self, text: str) -> str:
        """Run statements one by one; return what they print."""
        return self.run(
            "psql", "-h", str(self._folder), "-U", "bench", "-d", "postgres", "-qAt",
            "-v", "ON_ERROR_STOP=1", text=text,
        )  # fmt: skip

    def write(self, name: str, content: bytes) -> Path:
        """Put a file where the server can read it."""
        path = self._folder / name
        path.write_bytes(content)
        path.chmod(0o644)
        return path

    def copy_s(self, files: list[Path]) -> list[float]:
        """COPY each file into a plain table; return the seconds that each took, sync included."""
        lines = ["\\timing on", "SET synchronous_commit = on;"]
        lines += [f"COPY plain FROM '{file}' (FORMAT binary);" for file in files]
        printed = self.sql("\n".join(lines))
        times = [float(line.split()[1]) for line in printed.splitlines() if "Time:" in line]
        return [ms / 1000 for ms in times[-len(files) :]]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster | None]:
    """A cluster with a plain table, or None where PostgreSQL is not installed."""
    place = programs()
    if place is None:
        yield None
        return
    running = Cluster(place, folder)
    running.start()
    try:
        running.sql("CREATE TABLE plain (message_id text, body bytea)")
        yield running
    finally:
        running.stop()


def copy_file(batch: pa.RecordBatch) -> bytes:
    """Return message ids and bodies in the binary format of COPY."""
    parts = [b"PGCOPY\n\xff\r\n\0", struct.pack(">ii", 0, 0)]
    head, length = struct.Struct(">h"), struct.Struct(">i")
    ids, bodies = batch.column("message_id").to_pylist(), batch.column("body").to_pylist()
    for name, body in zip(ids, bodies, strict=True):
        text = name.encode()
        parts += [head.pack(2), length.pack(len(text)), text, length.pack(len(body)), body]
    parts.append(head.pack(-1))
    return b"".join(parts)
