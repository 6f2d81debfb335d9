"""Our server as a process of its own, for as long as something is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PATIENCE_S = 30


@dataclass(frozen=True)
class Served:
    """A running server."""

    pid: int
    #: "http", "amqp", "sqs" → where it is spoken
    addresses: dict[str, str]

    def port(self, protocol: str) -> int:
        return int(self.addresses[protocol].rpartition(":")[2])


@contextmanager
def served(path: Path) -> Iterator[Served]:
    """Run a server of a directory, on free ports."""
    ports = ("--http-port", "0", "--amqp-port", "0", "--sqs-port", "0")
    options = ("--json", "--reserve-bytes", "0", "--log-level", "warning", "--development")
    command = [sys.executable, "-m", "onibus", "serve", "--data", str(path), *ports, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        told = json.loads(line)
        addresses = {name: told[name] for name in ("http", "amqp", "sqs")}
        yield Served(process.pid, addresses)
    finally:
        process.terminate()
        process.communicate(timeout=_PATIENCE_S)
