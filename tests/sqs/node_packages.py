"""Packages of npm, installed once into the user's cache directory."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

#: The official SDK that checks the MD5 of what it sent and received.
SDK = "@aws-sdk/client-sqs@3.1164.0"


def node_modules(*packages: str) -> Path:
    """Return a directory whose node_modules have these packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm, which this machine does not have")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "onibus" / "npm" / "_".join(sorted(packages)).replace("/", "-")
    done = folder / "installed"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        command = ["npm", "install", "--no-audit", "--no-fund", "--save-exact", *packages]
        installed = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        if installed.returncode:
            pytest.skip(f"npm cannot install {packages}: {installed.stderr[-500:]}")
        done.touch()
    return folder
