"""Spark's Python processes print no traceback when Spark closes their socket; other errors show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Stands for a program of Spark: like the real one, it reports an error by its module's names.
PROGRAM = """
import traceback
import onibus.spark

try:
    raise {error}("text")
except Exception:
    if {reports}:
        traceback.print_exc()
    else:
        raise
"""


@pytest.mark.parametrize(("error", "printed"), [("BrokenPipeError", False), ("ValueError", True)])
@pytest.mark.parametrize(
    ("program", "reports"),
    [
        ("pyspark.daemon", True),
        ("pyspark.sql.streaming.python_streaming_source_runner", False),
    ],
)
def test_only_closed_sockets_are_quiet(
    tmp_path: Path, program: str, reports: bool, error: str, printed: bool
) -> None:
    source = tmp_path.joinpath(*program.split(".")).with_suffix(".py")
    source.parent.mkdir(parents=True)
    for package in source.relative_to(tmp_path).parents[:-1]:
        (tmp_path / package / "__init__.py").touch()
    source.write_text(PROGRAM.format(error=error, reports=reports), "utf-8")
    run = [sys.executable, "-m", program]
    said = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (f"{error}: text" in said.stderr) == printed, said.stderr
    assert ("Traceback" in said.stderr) == printed, said.stderr
