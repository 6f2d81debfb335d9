"""Fuzzing targets by name, and the inputs that are kept for each.

Nothing of Onibus is imported before a target is loaded: only code that is loaded under atheris is
watched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Protocol

#: Inputs that begin with a new server, and can be fed again without those before.
BLOCK = 1_000

_TESTS = Path(__file__).parents[1]

#: Takes an input; whatever it raises is a defect.
Feed = Callable[[bytes], None]


class Mutator(Protocol):
    """Makes inputs out of others; all that it draws comes from `random`."""

    random: Random

    def mutate(self, data: bytes) -> bytes: ...


@dataclass(frozen=True)
class Target:
    """Something that takes inputs."""

    name: str
    #: parts of the paths of the code that takes them
    watched: tuple[str, ...]
    #: modules that are loaded unwatched: they have separate targets, and watching is slow
    unwatched: tuple[str, ...] = ()

    @property
    def is_amqp(self) -> bool:
        return self.watched == _AMQP

    @property
    def corpus_file(self) -> Path:
        folder = _TESTS / "amqp" / "fuzz" if self.is_amqp else _TESTS / "fuzz"
        return folder / "corpus" / f"{self.name}.hex"

    def seeds(self) -> list[bytes]:
        """Return inputs that mean something."""
        if self.is_amqp:
            made: list[bytes] = import_module("tests.amqp.fuzz.seeds").SEEDS[self.name]()
        else:
            made = getattr(import_module("tests.fuzz.examples"), self.name)()
        return made

    def corpus(self) -> list[bytes]:
        """Return the seeds and the kept inputs, each once; for AMQP the file has both."""
        kept = self.corpus_file.read_text("ascii").split() if self.corpus_file.exists() else []
        seeds = [] if self.is_amqp else self.seeds()
        return list(dict.fromkeys([*seeds, *map(bytes.fromhex, kept)]))

    def load(self) -> Feed:
        """Return what takes an input."""
        module = "tests.amqp.fuzz.targets" if self.is_amqp else "tests.fuzz.targets"
        feed: Feed = import_module(module).TARGETS[self.name]
        return feed

    def begin(self) -> None:
        """Forget earlier inputs, so that a block of inputs can be fed again alone."""
        if not self.is_amqp:
            import_module("tests.fuzz.targets").begin()

    def prepare(self) -> None:
        """Make ready for an input: what that costs is not the input's."""
        if not self.is_amqp:
            import_module("tests.fuzz.targets").prepare()

    def mutator(self, random: Random, corpus: list[bytes]) -> Mutator:
        """Return what makes inputs for it."""
        made: Any
        if self.is_amqp:
            streams = import_module("tests.amqp.fuzz.targets").STREAMS
            mutate = import_module("tests.amqp.fuzz.mutate")
            made = mutate.Mutator(random, corpus, frames=self.name in streams)
        elif self.name == "arrow":
            made = import_module("tests.fuzz.arrow_streams").ArrowMutator(random, corpus)
        else:
            made = import_module("tests.fuzz.requests").RequestMutator(random, corpus)
        mutator: Mutator = made
        return mutator


_AMQP = ("onibus/protocols/amqp/",)
#: These have separate targets.
_CODEC = tuple(f"onibus.protocols.amqp.{module}" for module in ("decode", "encode", "frames"))

TARGETS = {
    target.name: target
    for target in (
        Target("types", _AMQP),
        Target("frames", _AMQP),
        Target("performatives", _AMQP),
        Target("messages", _AMQP),
        Target("handshakes", _AMQP, _CODEC),
        Target("conversations", _AMQP, _CODEC),
        Target("http", ("onibus/protocols/http/",)),
        Target("sqs", ("onibus/protocols/sqs/",)),
        Target("atom", ("onibus/protocols/atom/",)),
        Target("arrow", ("onibus/protocols/http/arrow", "onibus/core/path/admit_arrow")),
    )
}
#: Targets by protocol.
PROTOCOLS = {
    "amqp": [target.name for target in TARGETS.values() if target.is_amqp],
    "http": ["http"],
    "sqs": ["sqs"],
    "atom": ["atom"],
    "arrow": ["arrow"],
}


def targets_of(names: list[str]) -> list[Target]:
    """Return the targets of protocols, or those with these names."""
    found = [one for name in names for one in PROTOCOLS.get(name, [name])]
    return [TARGETS[name] for name in found]


def write_corpus(target: Target, corpus: list[bytes]) -> None:
    """Keep inputs, each once, a line each; seeds are made when they are used, but for AMQP."""
    seeds = set() if target.is_amqp else set(target.seeds())
    lines = dict.fromkeys(data.hex() for data in corpus if data and data not in seeds)
    target.corpus_file.write_text("".join(f"{line}\n" for line in lines), "ascii")
