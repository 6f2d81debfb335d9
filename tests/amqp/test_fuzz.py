"""Malformed input: every target takes its corpus and 50,000 more, in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.amqp.fuzz.seeds import SEEDS
from tests.fuzz.registry import PROTOCOLS, TARGETS
from tests.fuzz.run import has_atheris
from tests.source_tree import ROOT

_RUNS = 30_000
#: Nothing takes so long, whatever else the machine does.
_PATIENCE_S = 1_800


@pytest.mark.parametrize("target", SEEDS)
def test_whatever_comes_we_are_never_at_fault(target: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", target, "--guided"]
    ended = subprocess.run(
        [*command, "--inputs", str(_RUNS), "--seed", "6"],
        cwd=tmp_path,
        # Sets are gone through in the same order each time.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    print(ended.stdout.strip().splitlines()[-1:])
    crashes = {path.name: path.read_bytes().hex() for path in tmp_path.glob("crash-*")}
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-4_000:]}\n{crashes}"
    if has_atheris():
        [executed] = re.findall(r"number_of_executed_units: (\d+)", ended.stderr)
        assert int(executed) >= _RUNS + len(TARGETS[target].corpus())
    else:
        assert f"{_RUNS} inputs of seed 6: no failure" in ended.stdout


@pytest.mark.parametrize("target", SEEDS)
def test_a_corpus_has_at_least_as_much_as_its_seeds(target: str) -> None:
    kept = TARGETS[target].corpus_file.read_text("ascii").split()
    assert len(set(kept)) >= len(set(SEEDS[target]())) > 5


def test_every_target_is_run() -> None:
    assert list(SEEDS) == PROTOCOLS["amqp"]
