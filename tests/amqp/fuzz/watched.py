"""A target under atheris: which code an input reaches decides whether it is built upon.

`run.watch` starts it, in a process of its own, since libFuzzer ends the process when it is done.
"""

from __future__ import annotations

import sys
from random import Random

import atheris

# What is there before is not watched: nothing but the protocol is.
from onibus import bus  # noqa: F401
from onibus.security import keys  # noqa: F401
from tests.amqp.fuzz.mutate import Mutator
from tests.amqp.fuzz.run import corpus_of

#: These have targets of their own: watching them makes the others slow.
_CODEC = [f"onibus.protocols.amqp.{module}" for module in ("decode", "encode", "frames")]


def main(target: str, arguments: list[str]) -> None:
    unwatched = _CODEC if target in ("handshakes", "conversations") else []
    with atheris.instrument_imports(include=["onibus"], exclude=unwatched):
        from tests.amqp.fuzz.targets import STREAMS, TARGETS, watch_log
    watch_log()
    mutator = Mutator(Random(), corpus_of(target), frames=target in STREAMS)

    def another(data: bytes, size_max: int, seed: int) -> bytes:
        mutator.random.seed(seed)
        if mutator.random.random() < 0.1:
            return bytes(atheris.Mutate(data, size_max))
        return mutator.mutate(data)[:size_max]

    atheris.Setup([target, *arguments], TARGETS[target], custom_mutator=another)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
