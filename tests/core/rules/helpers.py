"""What tests of rules share: messages made of their properties, and filters run on them."""

from __future__ import annotations

from typing import Any

from onibus.core.message import Message
from onibus.core.rules.sql_compile import compile_filter
from onibus.core.rules.subject import Subject

NOON_MS = 1_767_268_800_000


def subject(properties: dict[str, Any] | None = None, **fields: Any) -> Subject:
    """A message with these properties and fields, as message 7, enqueued on 2026-01-01 at noon."""
    return Subject(Message(properties=properties or {}, **fields), 7, NOON_MS)


def evaluate(
    text: str, properties: dict[str, Any] | None = None, /, *, given: Any = None, **fields: Any
) -> bool | None:
    """What a filter says of a message: True, False or None for unknown."""
    return compile_filter(text, given)(subject(properties, **fields))
