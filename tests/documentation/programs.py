"""Example programs as processes, and their output line by line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.server.processes import PATIENCE_S
from tests.source_tree import ROOT

EXAMPLES = ROOT / "examples"


def environment(**variables: str) -> dict[str, str]:
    """Return an environment that names no server except by these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **variables}


def output_of(folder: str, command: list[str], **variables: str) -> str:
    """Run a command that ends in an example's folder; return its output."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES / folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(folder: str, command: list[str], **variables: str) -> Iterator[Iterator[str]]:
    """Run a command in an example's folder, give its lines, and stop it with SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=EXAMPLES / folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield iter(process.stdout)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


def lines_until(lines: Iterator[str], *wanted: str) -> list[str]:
    """Read lines until all that are wanted were printed."""
    seen: list[str] = []
    for line in lines:
        seen.append(line.strip())
        if all(any(one in text for text in seen) for one in wanted):
            return seen
    raise AssertionError("\n".join(seen))
