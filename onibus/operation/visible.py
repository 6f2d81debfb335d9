"""Untrusted strings, made safe to print on terminals, in logs and on pages.

A control character can move a terminal's cursor, retitle its window or end a log line. A character
that changes the direction of text can make one name look like another. Each is shown as its escape
sequence, such as \\x1b; other characters are unchanged.
"""

from __future__ import annotations

import re

#: C0 and C1 controls, direction marks, line separators, and characters UTF-8 or XML cannot carry.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
#: The same, without those that a JSON document escapes already.
_HIDDEN_IN_JSON = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", ""))
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def visible(text: str) -> str:
    """Return a string on one line, with such characters escaped."""
    return _HIDDEN.sub(_escape, text)


def visible_lines(text: str) -> str:
    """Return a string of several lines, with such characters escaped."""
    return "\n".join(visible(line) for line in text.split("\n"))


def visible_json(document: str) -> str:
    """Return a JSON document with such characters escaped in its strings: the same values."""
    return _HIDDEN_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    one = found[0]
    code = ord(one)
    return _SHORT.get(one) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
