"""How a deliberate mistake is put into the bus, and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

Make = Callable[[Any], Any]


class Mutant(NamedTuple):
    """A deliberate mistake: the attribute, or the handler of a command, that it replaces."""

    owner: Any
    name: Any
    make: Make
    kinds: tuple[str, ...]


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run with the mistake in place."""
    if isinstance(mutant.owner, dict):
        with patch.dict(mutant.owner, {mutant.name: mutant.make(mutant.owner[mutant.name])}):
            yield
    else:
        original = getattr(mutant.owner, mutant.name)
        with patch.object(mutant.owner, mutant.name, mutant.make(original)):
            yield
