"""Values with their types, as filters and actions have them: <Value i:type="d6p1:int">5</Value>."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from xml.etree.ElementTree import Element

from onibus.core.errors import InvalidArgument
from onibus.core.rules.values import ZONELESS, is_zoneless
from onibus.protocols.atom.durations import duration_of_microseconds, microseconds
from onibus.protocols.atom.xml import SCHEMA, SERVICE_BUS, escaped, local, tag, text_of, type_of

_PAIR = "KeyValueOfstringanyType"
_MICROSECOND = timedelta(microseconds=1)
#: XML Schema's words for infinity and NaN.
_NOT_FINITE = {"inf": "INF", "-inf": "-INF", "nan": "NaN"}
_INT32 = range(-(2**31), 2**31)


def flag(text: str) -> bool:
    """Return a boolean."""
    word = text.strip().lower()
    if word not in ("true", "false", "1", "0"):
        raise InvalidArgument(f"{text[:64]!r} is neither true nor false")
    return word in ("true", "1")


def whole(text: str) -> int:
    """Return a whole number."""
    word = text.strip()
    if not word.removeprefix("-").isdigit() or not word.isascii() or len(word) > 20:
        raise InvalidArgument(f"{text[:64]!r} is not a whole number")
    return int(word)


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text.strip())
    return found if found.tzinfo is not None else found.replace(tzinfo=ZONELESS)


def _span(text: str) -> timedelta:
    sign = -1 if text.startswith("-") else 1
    return sign * timedelta(microseconds=microseconds(text.removeprefix("-")))


def _bytes(text: str) -> bytes:
    return b64decode(text.strip(), validate=True)


_READ: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("string", "char", "guid", "anyURI", ""), str),
    **dict.fromkeys(("int", "long", "short", "byte"), whole),
    **dict.fromkeys(("unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"), whole),
    **dict.fromkeys(("double", "float", "decimal"), float),
    "boolean": flag,
    "dateTime": _time,
    "duration": _span,
    "base64Binary": _bytes,
}


def read_values(parent: Element | None) -> dict[str, Any]:
    """Return the names and values below an element."""
    found: dict[str, Any] = {}
    for pair in [] if parent is None else parent:
        key, value = pair.find(f"{{{SERVICE_BUS}}}Key"), pair.find(f"{{{SERVICE_BUS}}}Value")
        if local(pair) != _PAIR or key is None or value is None:
            raise InvalidArgument(f"{local(pair)}: write {_PAIR} with Key and Value")
        name, kind = text_of(key), type_of(value)
        if kind not in _READ or name in found:
            raise InvalidArgument(f"{name!r}: repeated, or of the unknown type {kind!r}")
        try:
            found[name] = _READ[kind](text_of(value))
        except (ValueError, OverflowError, binascii.Error):
            raise InvalidArgument(f"{name!r} is not a {kind}") from None
    return found


def write_values(values: dict[str, Any]) -> str:
    """Return names and values as the children of an element."""
    return "".join(
        tag(_PAIR, tag("Key", escaped(name)) + _write(value)) for name, value in values.items()
    )


def _write(value: Any) -> str:
    kind, text = _typed(value)
    # SDKs cut the prefix off by its length.
    return tag("Value", escaped(text), f'xmlns:d6p1="{SCHEMA}" i:type="d6p1:{kind}"')


def _typed(value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        return "boolean", str(value).lower()
    if isinstance(value, int):
        return ("int" if value in _INT32 else "long"), str(value)
    if isinstance(value, float):
        return "double", _NOT_FINITE.get(repr(value), repr(value))
    if isinstance(value, datetime):
        if is_zoneless(value):
            return "dateTime", value.replace(tzinfo=None).isoformat()
        return "dateTime", value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        total = value // _MICROSECOND
        return "duration", ("-" if total < 0 else "") + duration_of_microseconds(abs(total))
    if isinstance(value, bytes):
        return "base64Binary", b64encode(value).decode()
    return "string", str(value)
