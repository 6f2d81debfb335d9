"""What the filters of a batch read say about partitions, numbers and times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARING = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass(slots=True)
class Between:
    """A range of whole numbers, its end exclusive; None means unbounded."""

    start: int | None = None
    end: int | None = None

    def cut(self, one: Filter, values: list[int]) -> None:
        """Take off what a filter does not let pass."""
        low, high = min(values), max(values) + 1
        if isinstance(one, GreaterThan):
            low += 1
        elif isinstance(one, LessThan):
            high -= 1
        if not isinstance(one, (LessThan, LessThanOrEqual)):
            self.start = low if self.start is None else max(self.start, low)
        if not isinstance(one, (GreaterThan, GreaterThanOrEqual)):
            self.end = high if self.end is None else min(self.end, high)


class Narrowed:
    """Rows outside of this no filter lets pass; inside, some may not pass either."""

    def __init__(self) -> None:
        self.partitions: frozenset[int] | None = None
        self.numbers = Between()
        self._times_us = Between()

    @property
    def since_ms(self) -> int | None:
        """The first millisecond of which rows may pass."""
        return _milliseconds(self._times_us.start)

    @property
    def before_ms(self) -> int | None:
        """The first millisecond of which, and after which, no rows pass."""
        return _milliseconds(self._times_us.end)

    def cut(self, partition: int, start: int, end: int) -> tuple[int, int]:
        """Return what is left of a partition's range, as far as partitions and numbers go."""
        if self.partitions is not None and partition not in self.partitions:
            return start, start
        if self.numbers.start is not None:
            start = max(start, min(self.numbers.start, end))
        if self.numbers.end is not None:
            end = min(end, self.numbers.end)
        return start, max(start, end)

    def add(self, one: Filter, number: str, time: str) -> None:
        """Take a filter into account, given the columns of numbers and of times."""
        values = _values(one)
        if not values:
            return
        column = ".".join(one.attribute)  # type: ignore[attr-defined]
        if column == "partition" and isinstance(one, (EqualTo, In)):
            named = frozenset(values)
            self.partitions = named if self.partitions is None else self.partitions & named
        elif column == number and all(type(value) is int for value in values):
            self.numbers.cut(one, values)
        elif column == time and all(_has_zone(value) for value in values):
            self._times_us.cut(one, [(at - _EPOCH) // timedelta(microseconds=1) for at in values])


def narrow(filters: Iterable[Filter], number: str, time: str) -> Narrowed:
    """Return what filters leave; those of other kinds, or on other columns, narrow nothing."""
    narrowed = Narrowed()
    for one in filters:
        narrowed.add(one, number, time)
    return narrowed


def _values(one: Filter) -> list[Any]:
    """Return the values that a filter of a known kind compares with; none, if it has a null."""
    if isinstance(one, In):
        values = list(one.value)
    elif isinstance(one, _COMPARING):
        values = [one.value]
    else:
        return []
    return [] if any(value is None for value in values) else values


def _has_zone(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _milliseconds(microseconds: int | None) -> int | None:
    """Return the first whole millisecond that is not before a time. Stamps are whole ones."""
    return None if microseconds is None else max(-(-microseconds // 1000), 0)
