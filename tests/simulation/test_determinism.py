"""A seed is one run, byte for byte, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.simulator.client_parts import KINDS, TOPICS
from tests.simulator.simulation import Simulation, small_sizes
from tests.simulator.workload import Workload, run_seed
from tests.source_tree import ROOT

SEED, COMMANDS = 3, 4_000

#: Environments that give strings different hashes, and objects different addresses.
PROCESSES = {
    "one": {"PYTHONHASHSEED": "1"},
    "other": {"PYTHONHASHSEED": "2", "PYTHONMALLOC": "malloc"},
}


def trace_in(directory: Path, name: str) -> list[str]:
    """Run the seed in a process of that kind; return its trace and, at last, what it printed."""
    path = directory / name
    told = subprocess.run(
        [
            *(sys.executable, "-m", "tests.simulator.simulate", "--seed", str(SEED)),
            *("--commands", str(COMMANDS), "--kinds", "all", "--trace", str(path)),
        ],
        cwd=ROOT,
        env=os.environ | PROCESSES[name],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [*path.read_text().splitlines(), told.rpartition("digest ")[2].strip()]


def first_difference(one: list[str], other: list[str]) -> str | None:
    """Return the first step that two traces do not share."""
    for line, (left, right) in enumerate(zip(one, other, strict=False), 1):
        if left != right:
            return f"line {line}:\n  {left}\n  {right}"
    return None if len(one) == len(other) else f"{len(one)} lines and {len(other)}"


def test_a_seed_is_the_same_run_whatever_the_hash_seed(tmp_path: Path) -> None:
    one, other = (trace_in(tmp_path, name) for name in PROCESSES)
    assert first_difference(one, other) is None
    # Commands of every kind were among them, on entities of every kind. A seed may leave out
    # commands of a weight below 8: any change of the workload draws others.
    drawn = {line.split(" ", 4)[3] for line in one[:-1]}
    with small_sizes():
        table = Workload(Simulation(SEED), ["plain"]).table
    assert {command.__name__ for command, weight in table if weight >= 8} <= drawn
    words = {word for line in one[:-1] for word in line.split()}
    assert {*KINDS, *TOPICS} <= words


def test_a_seed_is_the_same_run_after_others_in_the_same_process() -> None:
    lines: list[str] = []
    first = run_seed(3, 400, write=lines.append)
    run_seed(4, 400)
    again: list[str] = []
    second = run_seed(3, 400, write=again.append)
    assert first_difference(lines, again) is None
    assert first.trace.digest() == second.trace.digest()
    # Times, answers and what was committed are in it.
    assert any(" answer receive [" in line for line in lines)
    assert any(" commit a " in line for line in lines)
    assert f"{first.clock.monotonic()} {first.clock.wall()}" in lines[-1]


def test_another_seed_is_another_run() -> None:
    assert run_seed(3, 50).trace.digest() != run_seed(4, 50).trace.digest()
