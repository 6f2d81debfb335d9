"""Run one target: its corpus first, then new inputs.

    python -m tests.fuzz.run arrow --inputs 200000 --seed 1

Inputs are made from the corpus by the target's mutator, each from the seed and its own number, and
are fed in child processes. A child that ends by a signal, an exception, too much time or too much
memory has failed: its input is saved as `crash-…` in the working directory. Give that file to feed
it again. SIGTERM ends a run with the number of its inputs. With `--guided` atheris chooses inputs
by the code that they reach (`watched.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import NamedTuple

from tests.fuzz.child import Current
from tests.fuzz.oracle import guarded
from tests.fuzz.registry import BLOCK, TARGETS, Target

#: Inputs are no longer than this under atheris: longer ones say nothing that these do not.
_WATCHED_BYTES_MAX = {"arrow": 8_192, "http": 4_096, "sqs": 4_096, "atom": 4_096}
_AMQP_BYTES_MAX = 1_536
#: Under atheris: by the clock, and of the process.
_WALL_SECONDS_MAX, _MEMORY_MB_MAX = 120, 1_024

#: Children that feed inputs, and whether SIGTERM has arrived.
_children: set[subprocess.Popen[bytes]] = set()
_over = Event()


class Fed(NamedTuple):
    """The result of a run."""

    #: children that failed
    failed: int
    #: inputs that were fed without a failure
    inputs: int


def end_at_sigterm() -> None:
    """Let children end by SIGTERM after the input that they are busy with."""

    def end(number: int, frame: object) -> None:
        _over.set()
        for child in list(_children):
            child.terminate()

    signal.signal(signal.SIGTERM, end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--inputs", type=int, default=50_000, help="new inputs; default: 50000")
    parser.add_argument("--first", type=int, default=0, help="number of the first; default: 0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--guided", action="store_true", help="let atheris choose inputs")
    parser.add_argument("files", nargs="*", type=Path, help="feed only these")
    given = parser.parse_args()
    target = TARGETS[given.target]
    if given.files:
        _feed_files(target, given.files)
    elif given.guided and has_atheris():
        corpus = target.corpus()
        options = {"runs": given.inputs + len(corpus) + 1, "seed": given.seed}
        ended = watch(target, corpus, options)
        print(f"{target.name}: {len(corpus)} inputs of the corpus and {given.inputs} of atheris")
        sys.exit(ended)
    else:
        last = given.first + given.inputs
        end_at_sigterm()
        sys.exit(run(target, given.first, last, given.seed, given.processes).failed)


def run(target: Target, first: int, last: int, seed: int, processes: int = 1) -> Fed:
    """Feed inputs with these numbers in child processes; return how that went."""
    share = -(-(last - first) // processes)
    size = -(-share // BLOCK) * BLOCK
    starts = range(first, last, size)
    with ThreadPoolExecutor(len(starts) or 1) as pool:
        all_fed = list(
            pool.map(lambda at: _run_child(target, at, min(at + size, last), seed), starts)
        )
    fed = Fed(sum(one.failed for one in all_fed), sum(one.inputs for one in all_fed))
    if not fed.failed:
        print(f"{target.name}: the corpus and {fed.inputs} inputs of seed {seed}: no failure")
    return fed


def _run_child(target: Target, first: int, last: int, seed: int) -> Fed:
    """Feed inputs to one child, unless SIGTERM has arrived."""
    if _over.is_set():
        return Fed(0, 0)
    with tempfile.NamedTemporaryFile() as file:
        current = Current(Path(file.name), new=True)
        words = ["tests.fuzz.child", target.name, str(first), str(last), str(seed), file.name]
        child = subprocess.Popen(
            [sys.executable, "-m", *words],
            stderr=subprocess.PIPE,
            # Sets are gone through in the same order each time.
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        _children.add(child)
        _, errors = child.communicate()
        _children.remove(child)
        number, data = current.read()
    if child.returncode == 0:
        return Fed(0, number - first)
    path = Path(f"crash-{target.name}-{hashlib.sha256(data).hexdigest()[:16]}")
    path.write_bytes(data)
    code = child.returncode
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    told = errors.decode("utf-8", "replace")[-6_000:]
    print(
        f"{told}\n{target.name}: input {number} of seed {seed} failed by {how}; it is in {path}. "
        f"Feed it again: python -m tests.fuzz.run {target.name} {path}\nOr with those before it: "
        f"python -m tests.fuzz.run {target.name} --seed {seed} "
        f"--first {number // BLOCK * BLOCK} --inputs {number % BLOCK + 1}",
        file=sys.stderr,
    )
    return Fed(1, number - first)


def _feed_files(target: Target, files: list[Path]) -> None:
    take = guarded(target, target.load())
    for path in files:
        take(path.read_bytes())
        print(f"{path}: nothing is wrong")


def has_atheris() -> bool:
    return find_spec("atheris") is not None


def watch(
    target: Target, corpus: list[bytes], options: dict[str, int], found: Path | None = None
) -> int:
    """Let atheris run a target, in a process that it ends itself; return how that ended."""
    with tempfile.TemporaryDirectory() as folder:
        for data in corpus:
            (Path(folder) / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        bounds = {
            "max_len": _WATCHED_BYTES_MAX.get(target.name, _AMQP_BYTES_MAX),
            "timeout": _WALL_SECONDS_MAX,
            "rss_limit_mb": _MEMORY_MB_MAX,
            # Not by the clock: the same seed makes the same inputs.
            "reload": 0,
            "print_final_stats": 1,
        }
        words = [f"-{name}={value}" for name, value in {**bounds, **options}.items()]
        folders = [folder] if found is None else [str(found), folder]
        command = [sys.executable, "-m", "tests.fuzz.watched", target.name, *words, *folders]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    main()
