"""`onibus serve` as a process of its own, as an operator runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.source_tree import ROOT

PATIENCE_S = 120
#: Servers of several tests run at once.
ANY_PORTS = {"ONIBUS_AMQP_PORT": "0", "ONIBUS_SQS_PORT": "0"}


class Served:
    """A server that has started."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready
        self.http: str = ready["http"]
        self.port = int(self.http.rpartition(":")[2])
        #: what clients of Service Bus are given
        self.service_bus: str = ready["service_bus"]

    def client(self, **how: Any) -> httpx.Client:
        return httpx.Client(base_url=self.http, trust_env=False, timeout=PATIENCE_S, **how)

    def stop(self, how: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Ask it to stop; return its exit code and what else it wrote."""
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "onibus", "serve", *map(str, args)]


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONIBUS_")}
    return {**kept, **ANY_PORTS, "PYTHONPATH": str(ROOT), **variables}


def refused(*args: str | Path, **variables: str) -> tuple[int, str]:
    """Start a server that does not start; return its exit code and what it wrote."""
    done = subprocess.run(
        command(*args),
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@contextmanager
def served(*args: str | Path, files_max: int | str = 0, **variables: str) -> Iterator[Served]:
    """Run a server on any free port; kill it in the end, if it still runs.

    `files_max` is how many files it may have open: a number, or what it begins with and what it may
    ask for, as soft:hard.
    """
    whole = command("--http-port", "0", "--json", *args)
    if files_max:
        whole = ["prlimit", f"--nofile={files_max}", *whole]
    process = subprocess.Popen(
        whole,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"it did not start: {process.communicate()[1]}")
        yield Served(process, json.loads(line))
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Any) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
