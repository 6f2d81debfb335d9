"""A server, and the command line as somebody at a terminal or a script uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from onibus.cli.main import app
from tests.client.server_helpers import ServerThread


class Onibus:
    """Runs commands against a server."""

    def __init__(self, connection: str) -> None:
        self._runner = CliRunner()
        self._environment = {"ONIBUS_CONNECTION": connection}

    def run(self, *words: str, code: int = 0, given: str | None = None) -> Result:
        """Run a command, and expect how it ends."""
        result = self._runner.invoke(app, list(words), input=given, env=self._environment)
        assert result.exit_code == code, f"{words}: {result.output} {result.exception!r}"
        return result

    def shown(self, *words: str, given: str | None = None) -> str:
        """Return what people see."""
        return self.run(*words, given=given).stdout

    def told(self, *words: str, given: str | None = None) -> list[Any]:
        """Return the documents that a script reads."""
        lines = self.run(*words, "--json", given=given).stdout.splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


@pytest.fixture
def onibus(server: ServerThread) -> Onibus:
    return Onibus(server.connection_string)
