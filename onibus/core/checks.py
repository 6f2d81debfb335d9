"""Checks of what callers hand in: types and sizes, before anything is changed.

A value that passes can be stored and read back. Without these checks, a string that is not valid
Unicode or a value that returns as another type would fail only after it was accepted.
"""

from __future__ import annotations

from datetime import datetime

from onibus.core.errors import InvalidArgument


def check_text(name: str, value: object, longest: int, shortest: int = 0) -> None:
    """Reject a value that is not a string of that length, or not valid Unicode."""
    if not isinstance(value, str) or not shortest <= len(value) <= longest:
        raise InvalidArgument(f"{name} must be a string of {shortest} to {longest} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"cannot encode {name}: {error}") from None


def check_whole(name: str, value: object, low: int, high: int = 2**53) -> None:
    """Reject a value that is not a whole number from low to high."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidArgument(f"{name} must be a whole number from {low} to {high}")


def check_properties(properties: object) -> None:
    """Reject properties that would not come back as they went in."""
    if type(properties) is not dict:
        raise InvalidArgument(f"properties must be a dict, not a {type(properties).__name__}")
    for name, value in properties.items():
        if type(name) is not str:
            raise InvalidArgument("property names must be strings")
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise InvalidArgument(f"property {name!r}: a datetime needs a time zone")
        elif isinstance(value, int) and not isinstance(value, bool):
            if not -(2**63) <= value < 2**63:
                raise InvalidArgument(f"property {name!r}: an integer has at most 64 bits")
        elif value is not None and not isinstance(value, (bool, float, str, bytes)):
            raise InvalidArgument(
                f"property {name!r} is a {type(value).__name__}: use None, bool, int, "
                "float, str, bytes or datetime"
            )
