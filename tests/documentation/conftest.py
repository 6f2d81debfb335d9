"""A server as `make run` starts it, for the programs of the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.processes import Served, served
from tests.source_tree import ROOT


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """Run a server with the configuration of `make run`, on free ports."""
    config = ROOT / "examples/onibus.toml"
    with served("--data", tmp_path / "data", "--config", config, "--http-port", "0") as one:
        yield one
