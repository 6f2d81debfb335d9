"""A target under atheris: which code an input reaches decides whether it is built upon.

`run.watch` starts it, in a process of its own, since libFuzzer ends the process when it is done.
"""

from __future__ import annotations

import sys
from random import Random

import atheris

# Modules loaded before are not watched: only the protocol is.
from onibus import bus  # noqa: F401
from onibus.security import keys  # noqa: F401
from tests.fuzz.oracle import WATCHED_SECONDS_MAX, guarded
from tests.fuzz.registry import TARGETS


def main(name: str, arguments: list[str]) -> None:
    target = TARGETS[name]
    with atheris.instrument_imports(include=["onibus"], exclude=list(target.unwatched)):
        feed = target.load()
    mutator = target.mutator(Random(), target.corpus())

    def another(data: bytes, size_max: int, seed: int) -> bytes:
        mutator.random.seed(seed)
        if mutator.random.random() < 0.1:
            return bytes(atheris.Mutate(data, size_max))
        return mutator.mutate(data)[:size_max]

    take = guarded(target, feed, WATCHED_SECONDS_MAX)
    atheris.Setup([name, *arguments], take, custom_mutator=another)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
