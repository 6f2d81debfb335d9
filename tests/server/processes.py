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

from onibus.security.keys import DEVELOPMENT_KEY
from tests.source_tree import ROOT

PATIENCE_S = 120
#: Servers of several tests run at once.
ANY_PORTS = {"ONIBUS_AMQP_PORT": "0", "ONIBUS_SQS_PORT": "0"}
#: Most tests use the well-known key, and this one says that they must not.
DEVELOPING = {"ONIBUS_DEVELOPMENT": "true"}
OWN_KEY_ONLY = {"ONIBUS_DEVELOPMENT": ""}


#: What runs the server, by its link between gateway and shard (`make test-link`).
LINKS = {"": "onibus", "coded": "tests.coded_link", "late": "tests.unsure_link"}


class Served:
    """A server that has started."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready
        self.http: str = ready["http"]
        self.port = int(self.http.rpartition(":")[2])
        #: what clients of Service Bus are given
        self.service_bus: str = ready["service_bus"]
        #: the secret of the root key that tests use
        self.root_key = DEVELOPMENT_KEY

    def client(self, **how: Any) -> httpx.Client:
        return httpx.Client(base_url=self.http, trust_env=False, timeout=PATIENCE_S, **how)

    def stop(self, how: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Ask it to stop; return its exit code and what else it wrote."""
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def command(*args: str | Path) -> list[str]:
    module = LINKS[os.environ.get("ONIBUS_LINK", "")]
    return [sys.executable, "-m", module, "serve", *map(str, args)]


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONIBUS_")}
    return {**kept, **ANY_PORTS, **DEVELOPING, "PYTHONPATH": str(ROOT), **variables}


def limited(files_max: int | str, whole: list[str]) -> list[str]:
    """Return a command with a limit of open files; 0 sets none."""
    return ["prlimit", f"--nofile={files_max}", *whole] if files_max else whole


def refused(*args: str | Path, files_max: int | str = 0, **variables: str) -> tuple[int, str]:
    """Start a server that does not start; return its exit code and what it wrote."""
    done = subprocess.run(
        limited(files_max, command(*args)),
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
    process = subprocess.Popen(
        limited(files_max, command("--http-port", "0", "--json", *args)),
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
        running = Served(process, json.loads(line))
        running.root_key = variables.get("ONIBUS_ROOT_KEY", DEVELOPMENT_KEY)
        yield running
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Any) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
