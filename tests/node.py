"""Scripts that Node runs, with the packages that the package.json beside them names."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cache import cached

_INSTALL_S = 300
#: Longer than any script takes on a machine that does other things as well.
_RUN_S = 900


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


@contextmanager
def running_node(script: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script, whose imports are found by its NODE_HOME; stop it in the end."""
    process = subprocess.Popen(
        ["node", str(script)],
        env={**os.environ, "NODE_HOME": str(node_home(script.parent)), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Whoever waits for what it says is not left waiting.
    late = threading.Timer(_RUN_S, process.kill)
    late.start()
    try:
        yield process
    finally:
        late.cancel()
        process.kill()
        process.communicate()


def run_node(script: Path, **variables: str) -> str:
    """Run a script to its good end; return what it prints."""
    with running_node(script, **variables) as process:
        out, err = process.communicate()
        assert process.returncode == 0, out + err
    return out
