"""The fields of bodies as users write them: `id INT, total DECIMAL(10,2), tags ARRAY<STRING>`.

The words are those of Spark SQL, read without Spark: the fields of a lake are known before Java
starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from onibus.core.errors import InvalidArgument

#: Types may be nested this deep.
DEPTH_MAX = 32
_TIMESTAMP = pa.timestamp("us", "UTC")
_PLAIN = {
    "string": pa.string(), "varchar": pa.string(), "char": pa.string(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(),
    "smallint": pa.int16(), "short": pa.int16(), "tinyint": pa.int8(), "byte": pa.int8(),
    "double": pa.float64(), "float": pa.float32(), "real": pa.float32(),
    "boolean": pa.bool_(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": _TIMESTAMP, "timestamp_ltz": _TIMESTAMP,
}  # fmt: skip
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|[\w$.-]+|[<>(),:])")
#: Characters that names of columns of Parquet files cannot have everywhere.
_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")
_NAME_LENGTH_MAX = 255


def is_column_name(name: str) -> bool:
    """Return whether every program that reads tables takes this name of a column."""
    fits = 0 < len(name) <= _NAME_LENGTH_MAX and not _BAD_NAME.search(name)
    return fits and name.isprintable()


def parse_fields(text: str) -> pa.StructType:
    """Return the fields that a user wrote as a struct."""
    return _Parser(text).all()


def struct_of(fields: Iterable[tuple[str, pa.DataType]]) -> pa.StructType:
    """Return a struct of fields whose names fit and differ, not only in case."""
    found: dict[str, str] = {}
    known = list(fields)
    for name, _ in known:
        if not is_column_name(name):
            raise InvalidArgument(
                f"{name[:80]!r} cannot name a column: use 1 to {_NAME_LENGTH_MAX} printable "
                "characters other than space and , ; { } ( ) ="
            )
        if name.lower() in found:
            raise InvalidArgument(
                f"the fields {found[name.lower()]!r} and {name!r} differ only in case, which "
                "tables do not allow: rename one of them"
            )
        found[name.lower()] = name
    return pa.struct([pa.field(name, kind) for name, kind in known])


class _Parser:
    """Reads fields token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(text[at:].strip()[:20])
            self._tokens.append(found[1])
            at = found.end()
        self._at = 0

    def all(self) -> pa.StructType:
        found = self._fields("", 0)
        if self._at < len(self._tokens):
            raise self._wrong(self._tokens[self._at])
        return found

    def _fields(self, end: str, depth: int) -> pa.StructType:
        """Read `name [:] type [NOT NULL] [COMMENT '…'], …` up to a token."""
        fields = []
        while True:
            name = self._take()
            if not name[0].isalnum() and name[0] not in "`_$":
                raise self._wrong(name)
            self._skip(":")
            kind = self._type(depth + 1)
            if self._skip("not") and not self._skip("null"):
                raise self._wrong("not")
            if self._skip("comment"):
                self._take()
            if name[0] == "`":
                name = name[1:-1].replace("``", "`")
            fields.append((name, kind))
            if not self._skip(","):
                break
        if end and not self._skip(end):
            raise self._wrong(self._take())
        return struct_of(fields)

    def _type(self, depth: int) -> pa.DataType:
        if depth > DEPTH_MAX:
            raise InvalidArgument(f"fields are nested more than {DEPTH_MAX} deep: use fewer levels")
        word = self._take()
        name = word.lower()
        if name in ("decimal", "numeric", "dec"):
            return self._decimal()
        if name == "struct" and self._skip("<"):
            return self._fields(">", depth)
        if name == "array" and self._skip("<"):
            element = self._type(depth + 1)
            self._expect(">")
            return pa.list_(element)
        if name == "map" and self._skip("<"):
            key = self._type(depth + 1)
            if key != pa.string():
                raise InvalidArgument("maps of bodies have keys of type STRING")
            self._expect(",")
            value = self._type(depth + 1)
            self._expect(">")
            return pa.map_(key, value)
        if name not in _PLAIN:
            raise self._wrong(word)
        if name in ("varchar", "char") and self._skip("("):
            self._take()
            self._expect(")")
        return _PLAIN[name]

    def _decimal(self) -> pa.DataType:
        if not self._skip("("):
            return pa.decimal128(10, 0)
        numbers = [self._take()]
        if self._skip(","):
            numbers.append(self._take())
        self._expect(")")
        try:
            precision, scale = [*map(int, numbers), 0][:2]
            if not 0 <= scale <= precision <= 38 or not precision:
                raise ValueError
        except ValueError:
            raise self._wrong(f"DECIMAL({', '.join(numbers)})") from None
        return pa.decimal128(precision, scale)

    def _take(self) -> str:
        if self._at == len(self._tokens):
            raise self._wrong("the end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, word: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at].lower() == word
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            raise self._wrong(self._take())

    def _wrong(self, token: str) -> InvalidArgument:
        return InvalidArgument(
            f"cannot read the fields {self._text[:200]!r} at {token!r}: use names and types such "
            "as 'id INT, total DECIMAL(10,2), tags ARRAY<STRING>'"
        )
