"""Decoded values, checked field by field against the type of their column.

A value that does not fit becomes null, and a problem names its field, the reason and the value. The
other fields of its message keep their values.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.types as kinds

from onibus.core.errors import InvalidArgument

#: Problems of one message that are named; the last one then counts the others.
PROBLEMS_MAX = 20
#: Characters of a value that a problem shows.
VALUE_LENGTH_MAX = 1_000
#: What decoding of untrusted bytes may raise.
UNREADABLE = (
    msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError,
    EOFError, LookupError, ArithmeticError, AttributeError,
)  # fmt: skip


class Problem(NamedTuple):
    """What could not be decoded."""

    #: the row of the batch
    row: int
    #: the path of the field, such as items[2].price; None for the whole body
    field: str | None
    problem: str
    value: str | None


class Decoded(NamedTuple):
    """A column of decoded bodies."""

    values: pa.Array
    problems: list[Problem]


class Unreadable(Exception):
    """A body that cannot be decoded at all."""


class Problems:
    """Collects the problems of a batch."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.row = 0
        self._of_row = 0

    def begin(self, row: int) -> None:
        """Continue with another row."""
        self.row, self._of_row = row, 0

    def null(self, field: str | None, problem: str, value: Any = None) -> Any:
        """Add a problem of the current row; return null, which stands for the value."""
        self._of_row += 1
        if self._of_row < PROBLEMS_MAX:
            shown = None if value is None else json_text(value)[:VALUE_LENGTH_MAX]
            self.found.append(Problem(self.row, field, problem, shown))
        elif self._of_row == PROBLEMS_MAX:
            self.found.append(Problem(self.row, None, "1 more field does not fit", None))
        else:
            more = self._of_row - PROBLEMS_MAX + 1
            self.found[-1] = self.found[-1]._replace(problem=f"{more} more fields do not fit")


def json_text(value: Any) -> str:
    """Return a value as JSON; anything that JSON has no word for, as a string."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (*UNREADABLE, NotImplementedError):
        return str(type(value).__name__)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except UNREADABLE:
        return False
    return True


#: Returns a value as a column takes it, given the value, its path and where problems go.
Read = Callable[[Any, str, Problems], Any]


def fitted(values: list[Any], kind: pa.DataType, read: Read, problems: Problems) -> Decoded:
    """Return values as a column; those that do not fit are checked field by field."""
    try:
        return Decoded(pa.array(values, kind), problems.found)
    except UNREADABLE:
        checked = []
        for at, value in enumerate(values):
            problems.begin(at)
            checked.append(value if _fits(value, kind) else read(value, "", problems))
        found = sorted(problems.found, key=lambda one: one.row)
        return Decoded(pa.array(checked, kind), found)


_PYTHON: dict[Callable[[pa.DataType], bool], tuple[Any, str]] = {
    kinds.is_boolean: (bool, "a boolean"),
    kinds.is_integer: (int, "a whole number"),
    kinds.is_floating: (float, "a number"),
    kinds.is_decimal: (decimal.Decimal, "a decimal number"),
    kinds.is_timestamp: (datetime.datetime, "a time in ISO 8601"),
    kinds.is_date: (datetime.date, "a date in ISO 8601"),
    kinds.is_binary: (bytes, "base64"),
}


def python_type(kind: pa.DataType) -> Any:
    """Return the type as which a value in JSON is read; any value may be null or missing."""
    if kinds.is_string(kind):
        return str
    for is_kind, (found, _) in _PYTHON.items():
        if is_kind(kind):
            return found
    raise InvalidArgument(f"bodies cannot have fields of type {kind}: use another type")


def reader_of(kind: pa.DataType) -> Read:
    """Return what checks the values of a column, or of a field."""
    if kinds.is_struct(kind):
        return _struct({one.name: reader_of(one.type) for one in kind})
    if kinds.is_map(kind):
        return _map(reader_of(kind.item_type))
    if kinds.is_list(kind):
        return _list(reader_of(kind.value_type))
    if kinds.is_string(kind):
        return _string
    return _plain(kind)


def _struct(fields: dict[str, Read]) -> Read:
    def read(value: Any, path: str, problems: Problems) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            return problems.null(path or None, "is not an object", value)
        before = f"{path}." if path else ""
        return {
            name: one(value.get(name), f"{before}{name}", problems) for name, one in fields.items()
        }

    return read


def _map(item: Read) -> Read:
    def read(value: Any, path: str, problems: Problems) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            return problems.null(path, "is not an object", value)
        return [
            (_string(name, path, problems) or "", item(one, f"{path}[{json_text(name)}]", problems))
            for name, one in value.items()
        ]

    return read


def _list(item: Read) -> Read:
    def read(value: Any, path: str, problems: Problems) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            return problems.null(path, "is not an array", value)
        return [item(one, f"{path}[{at}]", problems) for at, one in enumerate(value)]

    return read


def _string(value: Any, path: str, problems: Problems) -> Any:
    """Read a string; any other value is given as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json_text(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return problems.null(path, "is not valid Unicode")
    return text


def _number(value: Any, wanted: Any) -> Any:
    """Return a number of JSON as a column has it, if it is one."""
    if isinstance(value, decimal.Decimal) and wanted is not decimal.Decimal:
        value = float(value)
    if wanted is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _fits_decimal(precision: int, scale: int, value: decimal.Decimal) -> bool:
    """Return whether a column can have a number; Arrow writes out all digits of 1e-999999999."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        # Infinity or NaN.
        return False
    return exponent >= -scale and value.adjusted() < precision - scale


def _plain(kind: pa.DataType) -> Read:
    wanted, words = next(found for is_kind, found in _PYTHON.items() if is_kind(kind))
    limit, check = "", None
    if kinds.is_integer(kind):
        limit = f" of {kind.bit_width} bits"
        low, high = -(1 << (kind.bit_width - 1)), 1 << (kind.bit_width - 1)
        check = range(low, high).__contains__
    elif kinds.is_decimal(kind):
        limit = f" of {kind.precision} digits, {kind.scale} of them after the point"
        check = partial(_fits_decimal, kind.precision, kind.scale)

    def read(value: Any, path: str, problems: Problems) -> Any:
        if value is None:
            return None
        try:
            found = msgspec.convert(_number(value, wanted), wanted)
            fits = check is None or check(found)
        except UNREADABLE:
            fits = False
        return found if fits else problems.null(path, f"is not {words}{limit}", value)

    return read
