"""Node with the packages of tests/amqp/javascript, installed once into the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.source_tree import ROOT

FOLDER = ROOT / "tests" / "amqp" / "javascript"
_INSTALL_S = 300


def node_home() -> Path:
    """Return a directory whose packages Node finds; made where it is missing."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail("this test needs Node: apt install nodejs npm")
    package = (FOLDER / "package.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onibus"
    home = cache / f"node-{hashlib.sha256(package).hexdigest()[:12]}"
    home.mkdir(parents=True, exist_ok=True)
    # Tests that run at the same time install once.
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            (home / "package.json").write_bytes(package)
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error"]
            subprocess.run(command, cwd=home, check=True, timeout=_INSTALL_S)
            (home / "ready").touch()
    return home


def run_node(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts to its end."""
    home = node_home()
    return subprocess.run(
        ["node", str(FOLDER / script)],
        env={**os.environ, "NODE_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
