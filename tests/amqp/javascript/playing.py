"""Scenarios in JavaScript, run one after the other by one process of node."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from tests.amqp.sdk_helpers import SCRIPTS
from tests.bus_helpers import KEYS
from tests.node import node_home

#: Longer than any scenario takes; one that hangs fails instead.
_PATIENCE_S = 180

#: What a scenario may ask for, by name.
Others = dict[str, Callable[..., Any]]

#: Runs a scenario by its name.
Play = Callable[[str], None]


class Player:
    """A process of node that runs scenarios as it is asked to; another one where it has ended."""

    def __init__(self, certificate: Path) -> None:
        self._certificate = certificate
        self._numbers = count(1)
        self._process: subprocess.Popen[str] | None = None

    def play(self, scenario: str, connection: str, others: Others) -> None:
        """Run a scenario on a server; fail as it fails."""
        process = self._running()
        late = threading.Timer(_PATIENCE_S, process.kill)
        late.start()
        try:
            number = next(self._numbers)
            asked = {"run": scenario, "connection": connection, "number": number, "keys": KEYS}
            told = self._ask(asked)
            while "ask" in told:
                told = self._ask(_answer(others, told["ask"], told["given"]))
        finally:
            late.cancel()
        if "failed" in told:
            raise AssertionError(told["failed"])

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            trust = {"NODE_EXTRA_CA_CERTS": str(self._certificate)}
            # Newer ones have WebSockets without being asked.
            trust["NODE_OPTIONS"] = "--experimental-websocket"
            self._process = subprocess.Popen(
                ["node", str(SCRIPTS / "scenarios.mjs")],
                env={**os.environ, "NODE_HOME": str(node_home(SCRIPTS)), **trust},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._process

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        """Say something to it, and return what it says next."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "node has ended, or took too long"
        told: dict[str, Any] = json.loads(line)
        return told


def _answer(others: Others, name: str, given: list[Any]) -> dict[str, Any]:
    try:
        return {"answer": others[name](*given)}
    except Exception as error:  # the scenario says what it wanted
        return {"error": f"{type(error).__name__}: {error}"}
