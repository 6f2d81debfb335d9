"""A server in a process of its own, started as people start it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.processes import PATIENCE_S
from tests.source_tree import ROOT


@contextmanager
def server_process(log: Path, *flags: str) -> Iterator[tuple[str, int]]:
    """Run `onibus serve` with these flags; yield its address and its process id."""
    command = [sys.executable, "-m", "onibus", "serve", "--http-port", "0", "--json", *flags]
    with log.open("w") as told:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=told, text=True
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, log.read_text()
            yield json.loads(line)["http"], process.pid
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            process.stdout.close()
