"""The words of a filter or action.

| kind | what it is | value |
| --- | --- | --- |
| keyword | AND OR NOT IN LIKE ESCAPE IS NULL EXISTS TRUE FALSE, in any case | in capitals |
| word | a letter, then letters, digits and _ | as written |
| name | [any text] with ]] for ], or "any text" with "" for " | the text |
| text | 'any text' with '' for ' | the text |
| number | 12, 1.5, .5, 1E-3 | an int of 64 bits (or 2 to the 63rd), or a float |
| parameter | @ and letters, digits, _ | folded, without the @ |
| sign | = <> != < <= > >= + - * / % ( ) , ; . | != is <> |
| end | behind the last character | "" |

Every pattern takes its text once: possessive repetitions never go back.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from onibus.core.errors import InvalidFilter
from onibus.core.limits import SQL_LENGTH_MAX

KEYWORDS = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "FALSE"}
)

_TOKEN = re.compile(
    r"""
    (?P<space>\s++)
    | (?P<word>[^\W\d_]\w*+)
    | (?P<number>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)
    | (?P<text>'(?:[^']|'')*+')
    | (?P<bracket>\[(?:[^\]]|\]\])*+\])
    | (?P<quote>"(?:[^"]|"")*+")
    | (?P<parameter>@\w++)
    | (?P<sign><>|!=|<=|>=|[=<>+\-*/%(),;.])
    """,
    re.VERBOSE,
)
_UNFINISHED = {"'": "a string without its closing '", '"': 'a name without its closing "',
               "[": "a name without its closing ]"}  # fmt: skip


class Token(NamedTuple):
    """One word, and where it begins."""

    kind: str
    value: Any
    position: int


def tokens_of(text: str, length_max: int = SQL_LENGTH_MAX) -> list[Token]:
    """Return the tokens of an expression, the end among them, or raise InvalidFilter."""
    if not isinstance(text, str):
        raise InvalidFilter(f"an SQL expression must be a string, not a {type(text).__name__}")
    if len(text) > length_max:
        raise InvalidFilter(f"the expression has {len(text)} characters; the limit is {length_max}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidFilter("an unpaired surrogate", error.start) from None
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            wrong = _UNFINISHED.get(text[position], f"unexpected {text[position]!r}")
            raise InvalidFilter(wrong, position)
        kind = match.lastgroup
        assert kind is not None
        if kind != "space":
            tokens.append(_token(kind, match.group(), position, text[match.end() :][:1]))
        position = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


def _token(kind: str, source: str, position: int, following: str) -> Token:
    if kind == "word":
        if not source[0].isalpha():
            raise InvalidFilter(f"unexpected {source[0]!r}", position)
        capitals = source.upper()
        if source.isascii() and capitals in KEYWORDS:
            return Token("keyword", capitals, position)
        return Token("word", source, position)
    if kind == "number":
        return Token("number", _number(source, position, following), position)
    if kind == "text":
        return Token("text", source[1:-1].replace("''", "'"), position)
    if kind in ("bracket", "quote"):
        closing = source[-1]
        name = source[1:-1].replace(closing * 2, closing)
        if not name:
            raise InvalidFilter("an empty name", position, "a property's name")
        return Token("name", name, position)
    if kind == "parameter":
        return Token("parameter", source[1:].casefold(), position)
    return Token("sign", "<>" if source == "!=" else source, position)


def _number(source: str, position: int, following: str) -> int | float:
    if following.isalnum() or following in ("_", "."):
        raise InvalidFilter(f"a number goes on with {following!r}", position)
    if source.isdigit():
        integer = int(source)
        # One more than fits: a minus sign may precede it, which the parser checks.
        if integer > 1 << 63:
            raise InvalidFilter("a whole number of more than 64 bits", position)
        return integer
    number = float(source)
    if math.isinf(number):
        raise InvalidFilter("a number too large for 64 bits", position)
    return number
