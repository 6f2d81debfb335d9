"""Let atheris run targets for long, and keep what reaches new code: `make corpus SECONDS=600`.

Each target runs for that time. Of the inputs that it found, the shortest ones that run lines after
each other which no other input of the corpus does are added to it: few, which CI soon replays.
Defects are left as `crash-…` files, and the targets after it still run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.registry import PROTOCOLS, Feed, Target, targets_of, write_corpus
from tests.fuzz.run import has_atheris, watch

#: A step from line to line of a function.
Step = tuple[str, int, int]
#: Bytes of the inputs that are kept for a target, without its seeds: the repository stays small.
_KEPT_BYTES_MAX = 60_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=600, help="for each target; default: 600")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("targets", nargs="*", help="protocols or targets; default: all")
    given = parser.parse_args()
    if not has_atheris():
        sys.exit("atheris is not installed: install it to find new inputs")
    targets = targets_of(given.targets or list(PROTOCOLS))
    failed = [target.name for target in targets if not _grow(target, given.seconds, given.seed)]
    if failed:
        sys.exit(f"defects were found by {', '.join(failed)}: see the crash-… files")


def _grow(target: Target, seconds: int, seed: int) -> bool:
    """Run a target, and add to its corpus; return whether nothing is wrong."""
    options = {"max_total_time": seconds, "seed": seed or time.time_ns() % 2**31}
    with tempfile.TemporaryDirectory() as folder:
        ended = watch(target, target.corpus(), options, Path(folder))
        if ended == 0:
            keep(target, [path.read_bytes() for path in Path(folder).iterdir()])
    return ended == 0


def keep(target: Target, found: list[bytes]) -> None:
    """Add those to a corpus that reach what nothing in it does."""
    feed, corpus, seen = target.load(), target.corpus(), set[Step]()
    for data in corpus:
        seen |= steps(target, feed, data)
    room = _KEPT_BYTES_MAX - sum(map(len, set(corpus) - set(target.seeds())))
    for data in sorted(found, key=lambda one: (len(one), one)):
        reached = steps(target, feed, data)
        if not reached <= seen and len(data) <= room:
            seen |= reached
            room -= len(data)
            corpus.append(data)
    write_corpus(target, corpus)


def steps(target: Target, feed: Feed, data: bytes) -> set[Step]:
    """Return the steps that an input takes through the target's code."""
    found: set[Step] = set()

    def enter(frame: FrameType, event: str, value: Any) -> Any:
        name = frame.f_code.co_filename
        if not any(part in name for part in target.watched):
            return None
        before = 0

        def step(frame: FrameType, event: str, value: Any) -> Any:
            nonlocal before
            if event == "line":
                found.add((name, before, frame.f_lineno))
                before = frame.f_lineno
            return step

        return step

    target.prepare()
    sys.settrace(enter)
    try:
        feed(data)
    finally:
        sys.settrace(None)
    return found


if __name__ == "__main__":
    main()
