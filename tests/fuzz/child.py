"""A process that is fed inputs, and may crash: `run.py` starts it and sees how it ends.

Each input is written where the parent finds it before it is fed. SIGTERM ends the process after
the input that it is busy with.
"""

from __future__ import annotations

import mmap
import signal
import sys
import time
from pathlib import Path
from random import Random
from threading import Event

from tests.fuzz.oracle import guarded
from tests.fuzz.registry import BLOCK, TARGETS

_ROOM = 1 << 20
#: Seconds of the processor after which an input that native code is busy with ends the process.
_HARD_SECONDS = 60.0
_PRINT_EVERY_S = 60.0


class Current:
    """The input that is being fed, in a file that two processes share."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        if new:
            path.write_bytes(bytes(_ROOM))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _ROOM)

    def write(self, number: int, data: bytes) -> None:
        memory = self._memory
        memory[:8] = number.to_bytes(8, "little")
        memory[8:16] = len(data).to_bytes(8, "little")
        memory[16 : 16 + len(data)] = data

    def read(self) -> tuple[int, bytes]:
        number, size = (int.from_bytes(self._memory[at : at + 8], "little") for at in (0, 8))
        return number, self._memory[16 : 16 + size]


def main(name: str, first: int, last: int, seed: int, file: str) -> None:
    target, current = TARGETS[name], Current(Path(file))
    corpus = target.corpus()
    mutator = target.mutator(Random(), corpus)
    take = guarded(target, target.load())
    # The default action ends the process even inside native code.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    over = Event()
    signal.signal(signal.SIGTERM, lambda number, frame: over.set())
    printed = time.monotonic()
    # The corpus goes first, once.
    for number in range(-len(corpus) if first == 0 else first, last):
        if number % BLOCK == 0:
            target.begin()
        if number < 0:
            data = corpus[number]
        else:
            mutator.random.seed(seed << 32 | number)
            data = mutator.mutate(mutator.random.choice(corpus))
        current.write(max(number, 0), data)
        signal.setitimer(signal.ITIMER_PROF, _HARD_SECONDS)
        take(data)
        if time.monotonic() - printed > _PRINT_EVERY_S:
            printed = time.monotonic()
            print(f"{name}: inputs up to {number:,} of seed {seed}: no failure", flush=True)
        if over.is_set():
            break
    current.write(max(number + 1, 0), b"")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
