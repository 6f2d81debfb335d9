"""Our server as a separate process, for the length of a measurement."""

from __future__ import annotations

import json
import os
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
    #: "http", "amqp", "sqs" → its address
    addresses: dict[str, str]

    def port(self, protocol: str) -> int:
        return int(self.addresses[protocol].rpartition(":")[2])


@contextmanager
def served(path: Path, code: Path | None = None) -> Iterator[Served]:
    """Run a server with the data directory `path`, on free ports; `code` is another tree."""
    ports = ("--http-port", "0", "--amqp-port", "0", "--sqs-port", "0")
    options = ["--json", "--reserve-bytes", "0", "--log-level", "warning"]
    serve = [sys.executable, "-m", "onibus", "serve"]
    # `-m` takes modules from the working directory first.
    environment = os.environ | ({"PYTHONPATH": str(code)} if code else {})
    told = subprocess.run(
        [*serve, "--help"], cwd=code, env=environment, stdout=subprocess.PIPE, check=True
    )
    if b"--development" in told.stdout:
        # Earlier versions accept the well-known key without it.
        options.append("--development")
    command = [*serve, "--data", str(path), *ports, *options]
    process = subprocess.Popen(
        command, cwd=code, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        printed = json.loads(line)
        addresses = {name: printed[name] for name in ("http", "amqp", "sqs")}
        yield Served(process.pid, addresses)
    finally:
        process.terminate()
        process.communicate(timeout=_PATIENCE_S)
