"""Every target over HTTP takes its corpus and 5,000 inputs more, in a process that may crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import run as running
from tests.fuzz.registry import PROTOCOLS, TARGETS, Target
from tests.source_tree import ROOT

_INPUTS = 5_000
#: Nothing takes so long, whatever else the machine does.
_PATIENCE_S = 1_800
#: Of all inputs that are kept.
_CORPUS_BYTES_MAX = 1 << 20


@pytest.mark.parametrize("target", ["arrow", "http", "sqs", "atom"])
def test_whatever_comes_is_answered(target: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", target]
    ended = subprocess.run(
        [*command, "--inputs", str(_INPUTS), "--seed", "14"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    crashes = {path.name: path.read_bytes().hex() for path in tmp_path.glob("crash-*")}
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-6_000:]}\n{crashes}"
    assert f"{_INPUTS} inputs of seed 14: no failure" in ended.stdout


#: Ways in which an input can be the end of a child, and what is said of it.
FAULTS = {
    "ctypes.string_at(0)": "signal SIGSEGV",
    "raise ValueError('odd')": "exit code 1",
    "any(time.process_time() > begun + 1.5 for _ in itertools.count())": "s of a processor for one",
    "kept.append(bytearray(b'x') * (600 << 20))": "MB were used",
}


FAULTY = """
import ctypes, itertools, sys, time, types

fed, kept = 0, []

def feed(data):
    global fed
    fed += 1
    begun = time.process_time()
    if fed == 700:
        FAULT

faulty = types.ModuleType("tests.fuzz.targets")
faulty.TARGETS = {"arrow": feed}
faulty.begin = faulty.prepare = lambda: None
sys.modules["tests.fuzz.targets"] = faulty
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_an_input_that_does_harm_is_found_and_saved(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A target that is at fault at its 700th input, loaded by the child in place of another."""
    (tmp_path / "sitecustomize.py").write_text(FAULTY.replace("FAULT", fault.replace("\n", "; ")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    assert running.run(TARGETS["arrow"], 0, 2_000, 1).failed == 1
    told = capfd.readouterr().err
    assert FAULTS[fault] in told
    [saved] = tmp_path.glob("crash-arrow-*")
    assert saved.read_bytes() == _input(TARGETS["arrow"], 700)
    assert saved.name in told


def _input(target: Target, fed: int) -> bytes:
    """Return the input that is fed at that place, the first being 1."""
    from random import Random

    corpus = target.corpus()
    number = fed - 1 - len(corpus)
    mutator = target.mutator(Random(), corpus)
    mutator.random.seed(1 << 32 | number)
    return mutator.mutate(mutator.random.choice(corpus))


def test_every_corpus_is_small_and_readable() -> None:
    for target in TARGETS.values():
        assert len(target.corpus()) > 5, target.name
    files = [target.corpus_file for target in TARGETS.values() if target.corpus_file.exists()]
    assert sum(file.stat().st_size for file in files) < _CORPUS_BYTES_MAX


def test_every_target_belongs_to_a_protocol() -> None:
    named = [name for names in PROTOCOLS.values() for name in names]
    assert sorted(named) == sorted(TARGETS)
