"""Deliberate mistakes with counters that roll over (S8), which every fourth seed brings to that."""

from __future__ import annotations

from typing import Any

from onibus.core import numbering
from onibus.core.path import recover, stamp
from tests.simulation.mutating import Mutant


def issue_numbers_in_use(original: Any) -> Any:
    return lambda partition, ordinal: False


def wrap_ordinals(original: Any) -> Any:
    """Read ordinals back as the signed integers that their columns hold."""
    return lambda table, rows: rows


def page_by_number_alone(original: Any) -> Any:
    def not_below(self: Any, number: int, first: int, next_ordinal: int, is_live: Any) -> int:
        found: int = original(self, number, first, next_ordinal, lambda ordinal: False)
        return found

    return not_below


def forget_the_older_round(original: Any) -> Any:
    return lambda self, number, next_ordinal: original(self, number, next_ordinal)[:1]


OF_NUMBERS: dict[str, Mutant] = {
    "issue numbers in use": Mutant(stamp, "_in_use", issue_numbers_in_use, ("plain",)),
    "wrap ordinals": Mutant(recover, "_with_ordinals", wrap_ordinals, ("plain",)),
    "page by number alone": Mutant(
        numbering.Numbering, "not_below", page_by_number_alone, ("plain",)
    ),
    "forget the older round": Mutant(
        numbering.Numbering, "candidates", forget_the_older_round, ("plain",)
    ),
}
