"""A server loads what a server needs: whoever starts one does not wait for what clients need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.source_tree import ROOT

SERVING = "import onibus.cli.entry, onibus.cli.serve, onibus.cli.running"


def loaded(program: str) -> set[str]:
    """Return the modules that a program has loaded in the end."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_a_server_does_not_load_what_clients_need() -> None:
    modules = loaded(SERVING)
    assert "onibus.server.run" in modules
    assert not modules & {"httpx", "rich.console", "pyarrow", "cryptography", "onibus.client"}


@pytest.mark.parametrize("arguments", [["serve"], ["--help"], ["queue", "list"]])
def test_every_command_is_found(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onibus", *arguments, "--help"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = " ".join(word for word in arguments if not word.startswith("-"))
    assert f"onibus {words}".strip() in done.stdout
