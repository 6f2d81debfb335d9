"""Spark finds the data source wherever the package is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def environment_elsewhere(**more: str) -> dict[str, str]:
    """Return the environment of a user who has not activated ours."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith(("ONIBUS", "PYSPARK"))
    }
    ours = Path(sys.executable).parent
    places = [one for one in kept["PATH"].split(os.pathsep) if one and Path(one) != ours]
    return {**kept, "PATH": os.pathsep.join(places), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def outside(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run this environment's Python elsewhere, with an environment that is not activated."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=path,
        env=environment_elsewhere(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_installed_package_is_seen_where_spark_looks(tmp_path: Path) -> None:
    look = "import pkgutil; print([one.name for one in pkgutil.iter_modules()])"
    assert "'pyspark_onibus'" in outside(tmp_path, "-c", look).stdout
