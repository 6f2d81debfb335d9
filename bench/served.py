"""Our server as a process of its own, for as long as something is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.compiled import compiled_copy

_PATIENCE_S = 30


@dataclass(frozen=True)
class Served:
    """A running server."""

    pid: int
    #: "http", "amqp", "sqs" → where it is spoken
    addresses: dict[str, str]
    #: its busiest modules are compiled (tools/compiled.py)
    compiled: bool

    def port(self, protocol: str) -> int:
        return int(self.addresses[protocol].rpartition(":")[2])


@contextmanager
def served(path: Path) -> Iterator[Served]:
    """Run a server of a directory, on free ports; compiled, where there is a compiler."""
    ports = ("--http-port", "0", "--amqp-port", "0", "--sqs-port", "0")
    options = ("--json", "--reserve-bytes", "0", "--log-level", "warning")
    command = [
        sys.executable,
        "-m",
        "onibus",
        "serve",
        "--data",
        str(path.absolute()),
        *ports,
        *options,
    ]
    tree = _compiled()
    process = subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        told = json.loads(line)
        addresses = {name: told[name] for name in ("http", "amqp", "sqs")}
        yield Served(process.pid, addresses, tree is not None)
    finally:
        process.terminate()
        process.communicate(timeout=_PATIENCE_S)


@cache
def _compiled() -> Path | None:
    """Return where the compiled package is."""
    print("compiling the server, unless that was done before: minutes", file=sys.stderr)
    found = compiled_copy()
    if found is None:
        print("it cannot be compiled here: it is measured interpreted", file=sys.stderr)
    return found
