"""Run one target: its corpus first, then new inputs.

    python -m tests.amqp.fuzz.run conversations --runs 50000 --seed 1

With atheris inputs are chosen by the code that they reach (`watched.py`); where it is not there,
or with `--plain`, the same mutator draws them from the corpus alone. An input that fails is left as
`crash-…` in the working directory: give its file to see it fail again.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import FrameType
from typing import NoReturn

from tests.amqp.fuzz.mutate import BYTES_MAX, Mutator

CORPUS = Path(__file__).parent / "corpus"
#: Of one input: by the processor's time, which others do not change; by the clock only for atheris.
_SECONDS_MAX = 5
_WALL_SECONDS_MAX = 120
#: Of the process.
_MEMORY_MB_MAX = 1_024


def corpus_of(target: str) -> list[bytes]:
    """Return the inputs that are kept for a target."""
    lines = (CORPUS / f"{target}.hex").read_text("ascii").split()
    return [bytes.fromhex(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target")
    parser.add_argument("--runs", type=int, default=50_000, help="new inputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("files", nargs="*", type=Path, help="try only these")
    given = parser.parse_args()
    if given.files:
        _try_files(given.target, given.files)
    elif given.plain or not has_atheris():
        _run_plain(given.target, given.runs, given.seed)
    else:
        corpus = corpus_of(given.target)
        runs = {"runs": given.runs + len(corpus) + 1, "seed": given.seed}
        ended = watch(given.target, corpus, runs)
        print(f"{given.target}: {len(corpus)} inputs of the corpus and {given.runs} of atheris")
        sys.exit(ended)


def has_atheris() -> bool:
    return find_spec("atheris") is not None


def watch(
    target: str, corpus: list[bytes], options: dict[str, int], found: Path | None = None
) -> int:
    """Let atheris run a target, in a process that it ends itself; return how that ended."""
    with tempfile.TemporaryDirectory() as folder:
        for data in corpus:
            (Path(folder) / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        bounds = {
            "max_len": BYTES_MAX,
            "timeout": _WALL_SECONDS_MAX,
            "rss_limit_mb": _MEMORY_MB_MAX,
            # Not by the clock: the same seed makes the same inputs.
            "reload": 0,
            "print_final_stats": 1,
        }
        words = [f"-{name}={value}" for name, value in {**bounds, **options}.items()]
        folders = [folder] if found is None else [str(found), folder]
        command = [sys.executable, "-m", "tests.amqp.fuzz.watched", target, *words, *folders]
        return subprocess.run(command, check=False).returncode


def _try_files(target: str, files: list[Path]) -> None:
    from tests.amqp.fuzz.targets import TARGETS, watch_log

    watch_log()
    for path in files:
        TARGETS[target](path.read_bytes())
        print(f"{path}: nothing is wrong")


def _run_plain(target: str, runs: int, seed: int) -> None:
    from tests.amqp.fuzz.targets import STREAMS, TARGETS, watch_log

    watch_log()
    feed, corpus = TARGETS[target], corpus_of(target)
    random = Random(seed)
    mutator = Mutator(random, corpus, frames=target in STREAMS)
    signal.signal(signal.SIGVTALRM, _too_long)
    for number in range(-len(corpus), runs):
        data = corpus[number] if number < 0 else mutator.mutate(random.choice(corpus))
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS_MAX)
        try:
            feed(data)
        except BaseException:
            path = Path(f"crash-{hashlib.sha256(data).hexdigest()[:16]}")
            path.write_bytes(data)
            print(f"{path} has what failed", file=sys.stderr)
            raise
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    assert used < _MEMORY_MB_MAX, f"{used} MB were used"
    print(f"{target}: {len(corpus)} inputs of the corpus and {runs} of the plain mutator")


def _too_long(number: int, stack: FrameType | None) -> NoReturn:
    raise TimeoutError(f"one input took more than {_SECONDS_MAX} seconds")


if __name__ == "__main__":
    main()
