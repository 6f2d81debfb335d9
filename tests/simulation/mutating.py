"""How a deliberate mistake is put into the bus, and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

Make = Callable[[Any], Any]


class Mutant(NamedTuple):
    """What is replaced, and by what."""

    owner: Any
    name: str
    make: Make
    kinds: tuple[str, ...]


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run with the mistake in place."""
    original = getattr(mutant.owner, mutant.name)
    setattr(mutant.owner, mutant.name, mutant.make(original))
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.name, original)
