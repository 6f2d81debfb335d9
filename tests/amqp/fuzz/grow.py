"""Let targets run for long, and keep what reaches new code: `make fuzz SECONDS=600`.

Each target runs for so long. Of what it found, the shortest inputs that run lines after each other
which no other of the corpus does are added to it: few, which CI soon replays. Defects are left
as `crash-…` files, and the targets after it still run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.amqp.fuzz.run import CORPUS, corpus_of, has_atheris, watch
from tests.amqp.fuzz.seeds import SEEDS, write_corpus
from tests.amqp.fuzz.targets import TARGETS

#: A step from line to line of a function.
Step = tuple[str, int, int]
_WATCHED = "/onibus/protocols/amqp/"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("targets", nargs="*", default=list(SEEDS))
    given = parser.parse_args()
    if not has_atheris():
        sys.exit("atheris is not installed: it is needed to find new inputs")
    failed = [name for name in given.targets if not _grow(name, given.seconds, given.seed)]
    if failed:
        sys.exit(f"defects were found by {', '.join(failed)}: see the crash-… files")


def _grow(target: str, seconds: int, seed: int) -> bool:
    """Run a target, and add to its corpus; tell whether nothing is wrong."""
    options = {"max_total_time": seconds, "seed": seed or time.time_ns() % 2**31}
    with tempfile.TemporaryDirectory() as folder:
        ended = watch(target, corpus_of(target), options, Path(folder))
        if ended == 0:
            keep(target, [path.read_bytes() for path in Path(folder).iterdir()])
    return ended == 0


def keep(target: str, found: list[bytes]) -> None:
    """Add those to a corpus that reach what nothing in it does."""
    corpus, seen = corpus_of(target), set[Step]()
    for data in corpus:
        seen |= steps(TARGETS[target], data)
    for data in sorted(found, key=lambda one: (len(one), one)):
        reached = steps(TARGETS[target], data)
        if not reached <= seen:
            seen |= reached
            corpus.append(data)
    write_corpus(CORPUS / f"{target}.hex", corpus)


def steps(feed: Callable[[bytes], None], data: bytes) -> set[Step]:
    """Return the steps that an input takes through the protocol's code."""
    found: set[Step] = set()

    def enter(frame: FrameType, event: str, value: Any) -> Any:
        name = frame.f_code.co_filename
        if _WATCHED not in name:
            return None
        before = 0

        def step(frame: FrameType, event: str, value: Any) -> Any:
            nonlocal before
            if event == "line":
                found.add((name, before, frame.f_lineno))
                before = frame.f_lineno
            return step

        return step

    sys.settrace(enter)
    try:
        feed(data)
    finally:
        sys.settrace(None)
    return found


if __name__ == "__main__":
    main()
