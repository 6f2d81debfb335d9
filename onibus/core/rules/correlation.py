"""Correlation filters: every property that they name must be equal.

Equality is that of SQL: the same kind and the same value. Strings compare with case, numbers by
value, names of user properties without case. A property that the message lacks is equal to nothing.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from onibus.core.errors import InvalidFilter
from onibus.core.limits import PROPERTY_LENGTH_MAX
from onibus.core.rules.sql_compile import Condition
from onibus.core.rules.sql_parser import check_value
from onibus.core.rules.subject import MISSING, Subject
from onibus.core.rules.values import equal

#: The system properties that can be named: fields of Message.
FIELDS = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "subject",
    "session_id",
    "reply_to_session_id",
    "content_type",
)


class CorrelationFilter(msgspec.Struct, frozen=True, kw_only=True, tag="correlation"):
    """Selects messages whose named properties are all equal to those given here."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    subject: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not isinstance(self.properties, dict):
            raise InvalidFilter("properties must be a dict of names and values")
        folded = set()
        for name, value in self.properties.items():
            if not isinstance(name, str) or not name or name.casefold() in folded:
                raise InvalidFilter(f"invalid property name {name!r}")
            folded.add(name.casefold())
            if value is None:
                raise InvalidFilter(f"property {name!r}: nothing is equal to NULL")
            check_value(f"property {name!r}", value)
        given = [getattr(self, field) for field in FIELDS]
        for field, value in zip(FIELDS, given, strict=True):
            if value is None:
                continue
            if not isinstance(value, str) or len(value) > PROPERTY_LENGTH_MAX:
                raise InvalidFilter(
                    f"{field} must be a string of at most {PROPERTY_LENGTH_MAX} characters"
                )
            check_value(field, value)
        if not self.properties and all(value is None for value in given):
            raise InvalidFilter("a correlation filter must name at least one property")

    def count(self) -> int:
        """Return how many properties are named."""
        return len(self.properties) + sum(getattr(self, field) is not None for field in FIELDS)


def compile_correlation(wanted: CorrelationFilter) -> Condition:
    """Return the function of a correlation filter."""
    fields = [
        (attrgetter(field), value)
        for field in FIELDS
        if (value := getattr(wanted, field)) is not None
    ]
    properties = [(name, name.casefold(), value) for name, value in wanted.properties.items()]

    def matches(subject: Subject) -> bool:
        message = subject.message
        for read, value in fields:
            if read(message) != value:
                return False
        for name, folded, value in properties:
            found = subject.property(name, folded)
            if found is MISSING or not equal(found, value):
                return False
        return True

    return matches
