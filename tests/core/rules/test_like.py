"""LIKE and ESCAPE, and that no pattern makes them slow."""

from __future__ import annotations

import random
import re
import time

import pytest

from onibus.core.errors import InvalidFilter
from onibus.core.rules.like import like
from tests.core.rules.helpers import evaluate


@pytest.mark.parametrize(
    ("text", "pattern", "answer"),
    [
        ("abc", "abc", True),
        ("abc", "ABC", False),
        ("abc", "a%", True),
        ("abc", "%c", True),
        ("abc", "%b%", True),
        ("abc", "%", True),
        ("", "%", True),
        ("", "", True),
        ("a", "", False),
        ("", "_", False),
        ("a", "_", True),
        ("ab", "_", False),
        ("abc", "a_c", True),
        ("abc", "a__", True),
        ("abc", "a___", False),
        ("abc", "_%", True),
        ("abc", "%_", True),
        ("abc", "%%%", True),
        ("abc", "a%c%", True),
        ("ab", "ab%ab", False),  # the beginning is not the end
        ("abab", "ab%ab", True),
        ("axbxc", "a%b%c", True),
        ("acb", "a%b%c", False),
        ("line\nbreak", "line%", True),
        ("line\nbreak", "line_break", True),
        ("a.c", "a.c", True),
        ("abc", "a.c", False),
        ("[x]", "[x]", True),
        ("x", "[x]", False),  # T-SQL's classes are not in the language
        ("😀!", "_!", True),
    ],
)
def test_patterns(text: str, pattern: str, answer: bool) -> None:
    assert evaluate("text LIKE @pattern", {"text": text}, given={"pattern": pattern}) is answer
    assert evaluate("text LIKE pattern", {"text": text, "pattern": pattern}) is answer
    assert evaluate("text NOT LIKE pattern", {"text": text, "pattern": pattern}) is not answer


@pytest.mark.parametrize(
    ("text", "condition", "answer"),
    [
        ("ABC%", r"text LIKE 'ABC\%' ESCAPE '\'", True),
        ("ABCD", r"text LIKE 'ABC\%' ESCAPE '\'", False),
        ("ABC%", r"text LIKE 'ABC\%'", False),  # without ESCAPE nothing escapes
        ("ABC\\x", r"text LIKE 'ABC\%'", True),
        ("a_c", "text LIKE 'a!_c' ESCAPE '!'", True),
        ("abc", "text LIKE 'a!_c' ESCAPE '!'", False),
        ("a!c", "text LIKE 'a!!c' ESCAPE '!'", True),
        ("abc", "text LIKE 'a!bc' ESCAPE '!'", True),
        ("a%", "text LIKE 'a%%' ESCAPE '%'", True),
        ("ab", "text LIKE 'a%%' ESCAPE '%'", False),
        ("a'c", "text LIKE 'a''''c' ESCAPE ''''", True),
    ],
)
def test_escape(text: str, condition: str, answer: bool) -> None:
    assert evaluate(condition, {"text": text}) is answer


@pytest.mark.parametrize(
    "condition",
    ["absent LIKE '%'", "text LIKE NULL", "text LIKE absent", "text LIKE '%' ESCAPE NULL",
     "text LIKE '%' ESCAPE absent", "absent NOT LIKE '%'", "number LIKE '1'", "number LIKE text"],
)  # fmt: skip
def test_unknown(condition: str) -> None:
    assert evaluate(condition, {"text": "a", "number": 1}) is None


@pytest.mark.parametrize(
    "condition",
    ["a LIKE 1", "a LIKE TRUE", "a LIKE 'x' ESCAPE ''", "a LIKE 'x' ESCAPE 'ab'",
     "a LIKE 'x' ESCAPE 1", "a LIKE 'x!' ESCAPE '!'"],
)  # fmt: skip
def test_what_can_never_match_is_refused_at_once(condition: str) -> None:
    with pytest.raises(InvalidFilter):
        evaluate(condition)


def test_the_same_as_a_regular_expression() -> None:
    chance = random.Random(5)
    for _ in range(5_000):
        pattern = "".join(chance.choices("ab%_", k=chance.randrange(7)))
        text = "".join(chance.choices("ab", k=chance.randrange(9)))
        expression = pattern.replace("%", ".*").replace("_", ".")
        expected = re.fullmatch(expression, text) is not None
        assert like(pattern, None)[0](text) is expected, (pattern, text)


@pytest.mark.parametrize(
    "pattern", ["%a" * 400 + "%b", "%a_" * 300 + "%b", "%" + "a_" * 500 + "b%", "_" * 1_024 + "%b"]
)
def test_no_pattern_is_slow(pattern: str) -> None:
    matches, _ = like(pattern, None)
    start = time.process_time()
    assert matches("a" * 100_000) is False
    assert time.process_time() - start < 2
