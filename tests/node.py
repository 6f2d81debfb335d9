"""Scripts that Node runs, with the packages that the package.json beside them names."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cache import cached

_INSTALL_S = 300
_RUN_S = 120


def node_home(folder: Path) -> Path:
    """Return a directory whose packages Node finds; made where it is missing."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail("this test needs Node: apt install nodejs npm")
    package = (folder / "package.json").read_bytes()

    def install(home: Path) -> None:
        (home / "package.json").write_bytes(package)
        command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error"]
        subprocess.run(command, cwd=home, check=True, timeout=_INSTALL_S)

    return cached(f"node-packages-{hashlib.sha256(package).hexdigest()[:12]}", install)


def node_process(script: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a script; what it imports is found by its NODE_HOME."""
    return subprocess.Popen(
        ["node", str(script)],
        env={**os.environ, "NODE_HOME": str(node_home(script.parent)), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_node(script: Path, **variables: str) -> str:
    """Run a script to its good end; return what it prints."""
    process = node_process(script, **variables)
    try:
        out, err = process.communicate(timeout=_RUN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    return out
