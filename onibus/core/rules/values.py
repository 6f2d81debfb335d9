"""Values of the SQL of rules: their kinds, how they compare and what arithmetic they allow.

- NULL and missing properties are None, and mean *unknown*: any operation on None gives None.
- Values compare within their kind only; across kinds the result is unknown. Whole numbers and
  floating ones are one kind and compare by value. Strings compare by code points. Booleans and
  bytes are equal or not, and have no order.
- Whole numbers have 64 bits: an overflow, or a division of them by zero, is `FilterFailed`.
  Division cuts toward zero and a remainder has the sign of its dividend, as in C#.
- Floating numbers follow IEEE 754: a division by zero is infinite or not a number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from onibus.core.errors import FilterFailed
from onibus.core.limits import PROPERTY_LENGTH_MAX

#: The zone of times that were given without one: they count as UTC, and are shown without one.
ZONELESS = timezone(timedelta(0), "zoneless")

INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 63) - 1

NUMBER, TEXT, TIME, DURATION, BOOLEAN, BINARY = (
    *("number", "text", "time", "duration"),
    *("boolean", "binary"),
)
#: Kinds whose values have an order.
ORDERED = frozenset({NUMBER, TEXT, TIME, DURATION})

# A boolean is an int to Python, so it comes first.
_KINDS: dict[type, str] = {
    bool: BOOLEAN,
    int: NUMBER,
    float: NUMBER,
    str: TEXT,
    datetime: TIME,
    timedelta: DURATION,
    bytes: BINARY,
}

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITIES = frozenset({"=", "<>"})

Compare = Callable[[Any, Any], bool | None]
Compute = Callable[[Any, Any], Any]


def kind_of(value: Any) -> str | None:
    """Return the kind of a value; None for NULL and for values that rules cannot use."""
    kind = _KINDS.get(type(value))
    if kind is None and value is not None:
        for known, name in _KINDS.items():
            if isinstance(value, known):
                return name
    return kind


def is_zoneless(time: datetime) -> bool:
    """Return whether a time was given without a zone."""
    return time.tzname() == ZONELESS.tzname(None)


def in_range(time: datetime) -> bool:
    """Return whether a time, in UTC as messages keep it, has a year from 1 to 9999."""
    try:
        time.astimezone(UTC)
    except OverflowError:
        return False
    return True


def comparison(sign: str) -> Compare:
    """Return the function of a sign: true, false or, across kinds and with NULL, unknown."""
    function = _COMPARISONS[sign]
    only_ordered = sign not in EQUALITIES

    def compare(left: Any, right: Any) -> bool | None:
        kind = kind_of(left)
        if kind is None or kind != kind_of(right) or (only_ordered and kind not in ORDERED):
            return None
        try:
            return function(left, right)
        except TypeError:  # a time without a time zone has no place among those with one
            return None

    return compare


def plain_comparison(sign: str) -> Callable[[Any, Any], bool]:
    """Return the function of a sign for values that are known to be of one ordered kind."""
    return _COMPARISONS[sign]


equal = comparison("=")


def add(left: Any, right: Any) -> Any:
    """Add numbers, times and durations; concatenate strings, or a string and a whole number."""
    if left is None or right is None:
        return None
    kinds = (kind_of(left), kind_of(right))
    if kinds == (NUMBER, NUMBER):
        return _within_range(left + right)
    if TEXT in kinds and _can_be_text(left) and _can_be_text(right):
        if len(text := f"{left}{right}") > PROPERTY_LENGTH_MAX:
            raise FilterFailed(f"a string would be longer than {PROPERTY_LENGTH_MAX} characters")
        return text
    if kinds in ((TIME, DURATION), (DURATION, TIME), (DURATION, DURATION)):
        return _in_time(operator.add, left, right)
    raise _mismatch("+", left, right)


def subtract(left: Any, right: Any) -> Any:
    """Subtract numbers, times and durations."""
    if left is None or right is None:
        return None
    kinds = (kind_of(left), kind_of(right))
    if kinds == (NUMBER, NUMBER):
        return _within_range(left - right)
    if kinds in ((TIME, TIME), (TIME, DURATION), (DURATION, DURATION)):
        return _in_time(operator.sub, left, right)
    raise _mismatch("-", left, right)


def multiply(left: Any, right: Any) -> Any:
    """Multiply numbers."""
    if left is None or right is None:
        return None
    _need_numbers("*", left, right)
    return _within_range(left * right)


def divide(left: Any, right: Any) -> Any:
    """Divide numbers; whole ones cut toward zero."""
    if left is None or right is None:
        return None
    _need_numbers("/", left, right)
    if isinstance(left, int) and isinstance(right, int):
        return _within_range(_quotient(left, right))
    dividend, divisor = float(left), float(right)
    if divisor:
        return dividend / divisor
    if not dividend or math.isnan(dividend):
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)


def remainder(left: Any, right: Any) -> Any:
    """Return the remainder of a division; it has the sign of its dividend."""
    if left is None or right is None:
        return None
    _need_numbers("%", left, right)
    if isinstance(left, int) and isinstance(right, int):
        return left - right * _quotient(left, right)
    try:
        return math.fmod(left, right)
    except ValueError:
        return math.nan


def negate(value: Any) -> Any:
    """Change the sign of a number or a duration."""
    if value is None:
        return None
    kind = kind_of(value)
    if kind == NUMBER:
        return _within_range(-value)
    if kind == DURATION:
        try:
            return -value
        except OverflowError as error:
            raise FilterFailed(f"a duration cannot be turned round: {error}") from None
    raise _unsigned(value)


def affirm(value: Any) -> Any:
    """Return the operand of a plus sign unchanged: a number or a duration."""
    if value is None or kind_of(value) in (NUMBER, DURATION):
        return value
    raise _unsigned(value)


COMPUTATIONS: dict[str, Compute] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
}


def _can_be_text(value: Any) -> bool:
    kind = kind_of(value)
    return kind == TEXT or (kind == NUMBER and isinstance(value, int))


def _quotient(dividend: int, divisor: int) -> int:
    if not divisor:
        raise FilterFailed("a whole number is divided by zero")
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def _within_range(number: Any) -> Any:
    if isinstance(number, int) and not INTEGER_MIN <= number <= INTEGER_MAX:
        raise FilterFailed("a whole number would need more than 64 bits")
    return number


def _in_time(function: Compute, left: Any, right: Any) -> Any:
    try:
        return function(left, right)
    except (OverflowError, TypeError) as error:
        raise FilterFailed(f"a time cannot be computed: {error}") from None


def _need_numbers(sign: str, left: Any, right: Any) -> None:
    if kind_of(left) != NUMBER or kind_of(right) != NUMBER:
        raise _mismatch(sign, left, right)


def _unsigned(value: Any) -> FilterFailed:
    name = kind_of(value) or type(value).__name__
    return FilterFailed(f"a sign needs a number, not a {name}")


def _mismatch(sign: str, left: Any, right: Any) -> FilterFailed:
    names = [kind_of(value) or type(value).__name__ for value in (left, right)]
    return FilterFailed(f"cannot apply {sign} to a {names[0]} and a {names[1]}")
