"""How a difference between the bus and its model is told."""

from __future__ import annotations

from typing import Any


class Mismatch(AssertionError):
    """The bus did something that the model did not."""


def check(holds: bool, words: str) -> None:
    """Raise `Mismatch` unless it holds."""
    if not holds:
        raise Mismatch(words)


def same(what: str, real: Any, model: Any) -> None:
    """Raise `Mismatch` unless both are equal."""
    if real != model:
        raise Mismatch(f"{what}:\n  bus   {real}\n  model {model}")
