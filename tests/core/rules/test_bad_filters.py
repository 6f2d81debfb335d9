"""Malformed, overlong and too deep filters and actions: refused with place and expectation."""

from __future__ import annotations

import random
import time
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onibus.core import limits
from onibus.core.errors import FilterFailed, InvalidArgument, InvalidFilter
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import Rule, SqlAction, SqlFilter, from_plain, to_plain
from onibus.core.rules.sql_action import compile_action
from onibus.core.rules.sql_compile import compile_filter
from tests.core.rules.helpers import evaluate, subject


def refusal(text: Any, parameters: dict[str, Any] | None = None) -> InvalidFilter:
    with pytest.raises(InvalidFilter) as caught:
        compile_filter(text, parameters)
    assert isinstance(caught.value, InvalidArgument)
    assert caught.value.code == "invalid-filter"
    return caught.value


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 0, "a value"),
        ("   ", 3, "a value"),
        ("a", 0, "a condition"),
        ("TRUE", 0, "a condition"),
        ("a =", 3, "a value"),
        ("a = 1 AND", 9, "a value"),
        ("a = 1 AND b", 10, "a condition"),
        ("a AND b = 1", 0, "a condition"),
        ("NOT a", 4, "a condition"),
        ("(a = 1", 6, ")"),
        ("a = 1)", 5, "AND, OR or the end"),
        ("a = 1 b = 2", 6, "AND, OR or the end"),
        ("a = 1; b = 2", 5, "AND, OR or the end"),
        ("a = 1 = 2", 6, "AND, OR or the end"),
        ("(a = 1) = TRUE", 0, "a value"),
        ("1 + (a = 1) > 2", 4, "a value"),
        ("(a = 1) + 1 > 2", 0, "a value"),
        ("-(a = 1) > 2", 1, "a value"),
        ("a = NOT b = 1", 4, "a value"),
        ("a IN 1", 5, "("),
        ("a IN ()", 6, "a value"),
        ("a IN (1", 7, ", or )"),
        ("a IN (1,)", 8, "a value"),
        ("a IN (b = 1)", 8, ", or )"),
        ("a NOT = 1", 6, "IN or LIKE"),
        ("a NOT NULL", 6, "IN or LIKE"),
        ("a IS 1", 5, "NULL"),
        ("a IS NOT 1", 9, "NULL"),
        ("1 IS NULL", 0, "a property"),
        ("a + 1 IS NULL", 0, "a property"),
        ("EXISTS a", 7, "("),
        ("EXISTS(1)", 7, "a value"),
        ("EXISTS(a = 1)", 9, ")"),
        ("a LIKE", 6, "a value"),
        ("a LIKE 'x' ESCAPE", 17, "a value"),
        ("a LIKE (b = 1)", 7, "a value"),
        ("other.a = 1", 0, "sys or user"),
        ("[sys].Label = 'x'", 0, "sys or user"),
        ("user. = 1", 6, "a property's name"),
        ("nothing(a) = 1", 0, "property(name) or p(name)"),
        ("p() = 1", 2, "a value"),
        ("p('a' = 1", 6, ")"),
        ("[] = 1", 0, "a property's name"),
        ("AND = 1", 0, "a value"),
    ],
)
def test_what_was_expected_and_where(text: str, position: int, expected: str) -> None:
    error = refusal(text)
    assert (error.position, error.expected) == (position, expected)
    assert str(error).endswith(f"at character {position + 1}; expected {expected}")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        *(("a = 'x", 4), ('"a = 1', 0), ("[a = 1", 0), ("a = 'it''s", 4), ("a ! 1", 2)),
        *(("a # 1", 2), ("a = 1x", 4), ("a = 1.2.3", 4), ("a = 1_000", 4), ("_a = 1", 0)),
        *(("² = 1", 0), ("a = ١", 4), ("a = @", 4), ("a = @missing", 4), ("sys.Nothing = 1", 4)),
        *(("sys.LockToken = 1", 4), ("newid() = 1", 0), ("a = 1e999", 4), ("a = '\ud800'", 5)),
        *(("a = 9223372036854775808", 4), ("a = -9223372036854775809", 5), ("a = \0", 4)),
    ],
)
def test_what_is_no_word_of_the_language(text: str, position: int) -> None:
    assert refusal(text).position == position


@pytest.mark.parametrize("text", [None, b"a = 1", 1, ["a = 1"]])
def test_what_is_no_text(text: Any) -> None:
    assert refusal(text).position is None


@pytest.mark.parametrize(
    "parameters",
    [
        *({"p": [1]}, {"p": {}}, {"p": object()}, {"p": 1 << 63}, {"p": "\ud800"}, {"": 1}),
        *({"@": 1}, {1: 1}, {"@p": 1, "P": 2}, {"p": datetime(2026, 1, 1)}),
    ],
)
def test_parameters_that_no_message_can_have(parameters: dict[str, Any]) -> None:
    refusal("a = 1", parameters)
    with pytest.raises(InvalidFilter):
        compile_action("SET a = 1", parameters)


@pytest.mark.parametrize("parameters", [None, [("p", 1)], "p"])
def test_parameters_that_are_no_dict(parameters: Any) -> None:
    for kind, text in ((SqlFilter, "a = 1"), (SqlAction, "SET a = 1")):
        with pytest.raises(InvalidFilter):
            kind(text, parameters)


def test_length() -> None:
    def of_length(length: int) -> str:
        return f"a = '{'x' * (length - 6)}'"

    longest = of_length(limits.SQL_LENGTH_MAX)
    assert len(longest) == 1_024
    compile_filter(of_length(limits.SQL_LENGTH_MAX - 1))
    compile_filter(longest)
    error = refusal(of_length(limits.SQL_LENGTH_MAX + 1))
    assert "1025 characters; the limit is 1024" in str(error)
    compile_filter(of_length(5_000), length_max=5_000)
    compile_action("SET " + longest[:-5] + "'")
    with pytest.raises(InvalidFilter):
        compile_action("SET " + longest)


@pytest.mark.parametrize(
    ("start", "middle", "end"),
    [("(", "a = 1", ")"), ("NOT ", "a = 1", ""), ("- ", "a = 1", ""), ("+", "a = 1", ""),
     ("p(", "'z'", ")"), ("(", "1", ")")],
)  # fmt: skip
def test_depth(start: str, middle: str, end: str) -> None:
    def nested(depth: int) -> str:
        text = start * depth + middle + end * depth
        return text if "=" in middle else f"{text} = 1"

    for depth in (limits.SQL_DEPTH_MAX - 1, limits.SQL_DEPTH_MAX):
        compile_filter(nested(depth))(subject({"a": 1}))
    assert "more than 32 levels deep" in str(refusal(nested(limits.SQL_DEPTH_MAX + 1)))
    assert "more than 32 levels deep" in str(refusal(nested(200)))


def test_depth_is_counted_down_again() -> None:
    deep = "(" * 32 + "a = 1" + ")" * 32
    assert evaluate(f"{deep} AND {deep}", {"a": 1}) is True


def test_elements_of_a_list() -> None:
    def listed(count: int) -> str:
        return "a IN (" + ",".join(["1"] * count) + ")"

    for count in (limits.SQL_LIST_LENGTH_MAX - 1, limits.SQL_LIST_LENGTH_MAX):
        compile_filter(listed(count))
    assert "more than 256 elements" in str(refusal(listed(limits.SQL_LIST_LENGTH_MAX + 1)))


def test_statements_of_an_action() -> None:
    for count in (limits.SQL_STATEMENT_COUNT_MAX - 1, limits.SQL_STATEMENT_COUNT_MAX):
        compile_action("SET a = 1;" * count)
    with pytest.raises(InvalidFilter, match="more than 32 statements"):
        compile_action("SET a = 1;" * (limits.SQL_STATEMENT_COUNT_MAX + 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "SET or REMOVE"),
        (";", "SET or REMOVE"),
        ("SET a = 1;;", "SET or REMOVE"),
        ("SET a = 1, SET b = 2", "SET or REMOVE"),
        ("a = 1", "SET or REMOVE"),
        ("SET", "a value"),
        ("SET a", "="),
        ("SET a 1", "="),
        ("SET a =", "a value"),
        ("SET a <> 1", "="),
        ("SET 'a' = 1", "a value"),
        ("SET p('a') = 1", "="),
        ("SET a = (b = 1)", "a value"),
        ("REMOVE", "a value"),
        ("REMOVE a b", "SET or REMOVE"),
        ("REMOVE a = 1", "SET or REMOVE"),
        ("SET other.a = 1", "sys or user"),
    ],
)
def test_malformed_actions(text: str, expected: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        compile_action(text)
    assert caught.value.expected == expected


@pytest.mark.parametrize(
    "name",
    ["SequenceNumber", "EnqueuedTimeUtc", "DeliveryCount", "ExpiresAtUtc", "Nothing",
     "EnqueuedSequenceNumber", "ScheduledEnqueueTimeUtc"],
)  # fmt: skip
def test_what_an_action_cannot_change(name: str) -> None:
    for text in (f"SET sys.{name} = 1", f"REMOVE sys.{name}"):
        with pytest.raises(InvalidFilter):
            compile_action(text)


# Anything at all: either it is refused, or it can be run.

WORDS = [
    *(
        "a",
        "b",
        "sys.",
        "user.",
        "sys.Label",
        "[x y]",
        '"q"',
        "@p",
        "1",
        "2.5",
        "'t'",
        "''",
        "TRUE",
    ),
    *("NULL", "AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "EXISTS", "p(", "property(", "("),
    *(")", ",", ";", "=", "<>", "<", ">=", "+", "-", "*", "/", "%", ".", "SET", "REMOVE", "[", "'"),
]
SUBJECT = subject({"a": 1, "b": "t", "x y": None})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_kept(value: float) -> None:
    equal = CorrelationFilter(properties={"p": value})
    for chosen in (SqlFilter("a = @p", {"p": value}), equal):
        rule = Rule("r", chosen, SqlAction("SET a = @p", {"p": value}))
        kept = from_plain(msgspec.json.decode(msgspec.json.encode(to_plain(rule))))
        assert repr(kept) == repr(rule)


def try_all(text: str) -> None:
    """Read a text as a filter and as an action, and run what was read."""
    for compiler in (compile_filter, compile_action):
        try:
            compiler(text, {"p": 1})(SUBJECT)
        except InvalidFilter as error:
            place = error.position or 0
        except FilterFailed:
            place = 0
        else:
            place = 0
        assert 0 <= place <= len(text)


def test_random_words_are_refused_or_run() -> None:
    chance = random.Random(17)
    start = time.process_time()
    for _ in range(6_000):
        try_all(" ".join(chance.choices(WORDS, k=chance.randrange(1, 14))))
    assert time.process_time() - start < 20


def test_long_random_words_take_bounded_time() -> None:
    chance = random.Random(18)
    slowest = 0.0
    for _ in range(300):
        words = chance.choices(chance.sample(WORDS, 3), k=600)
        start = time.process_time()
        try_all("".join(words)[:1_024])
        slowest = max(slowest, time.process_time() - start)
    assert slowest < 1


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_refused_or_run(text: str) -> None:
    try_all(text)
    try_all(f"a = '{text}")
    try_all(f"[{text}] = 1")
