"""Actions, correlation filters, and rules as they are made, stored and run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from onibus.core.errors import FilterFailed, InvalidFilter, InvalidName
from onibus.core.message import Message, encode
from onibus.core.rules.correlation import CorrelationFilter, compile_correlation
from onibus.core.rules.rule import (
    DEFAULT_RULE,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
    compile_rule,
    from_plain,
    to_plain,
)
from onibus.core.rules.sql_action import compile_action
from onibus.core.rules.values import ZONELESS
from tests.core.rules.helpers import subject

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def act(
    text: str, properties: dict[str, Any] | None = None, /, *, given: Any = None, **fields: Any
) -> Message:
    """The message as an action leaves it; it can be stored, and the given one is untouched."""
    before = subject(properties, **fields)
    bytes_before = encode(before.message)
    after = compile_action(text, given)(before)
    assert encode(before.message) == bytes_before
    encode(after)
    return after


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("SET c = 1", {"a": 1, "B": "x", "c": 1}),
        ("SET a = a + 1", {"a": 2, "B": "x"}),
        ("SET b = b + '!'", {"a": 1, "B": "x!"}),  # its name keeps its case
        ("set user.a = 'x'", {"a": "x", "B": "x"}),
        ("REMOVE b", {"a": 1}),
        ("remove user.[B];", {"a": 1}),
        ("REMOVE nothing", {"a": 1, "B": "x"}),
        ("SET a = NULL", {"a": None, "B": "x"}),
        ("SET a = nothing / 2", {"a": None, "B": "x"}),
        ("SET a = a + 1; SET a = a * 10; REMOVE B", {"a": 20}),
        ("SET a = a + 1 SET B = a REMOVE a", {"B": 2}),
        ("REMOVE a; SET A = 5", {"B": "x", "A": 5}),
        ("SET c = 1; SET d = C + 1", {"a": 1, "B": "x", "c": 1, "d": 2}),
        ("SET a = sys.Label + '/' + sys.SequenceNumber", {"a": "label/7", "B": "x"}),
        ("SET a = @p; SET B = TRUE", {"a": 1.5, "B": True}),
        ("SET a = p('b')", {"a": "x", "B": "x"}),
        ("SET [new name] = -1", {"a": 1, "B": "x", "new name": -1}),
    ],
)
def test_user_properties(text: str, properties: dict[str, Any]) -> None:
    after = act(text, {"a": 1, "B": "x"}, given={"p": 1.5}, subject="label")
    assert after.properties == properties
    assert after.subject == "label"


def test_a_floating_property_stays_one() -> None:
    after = act("SET f = 2; SET i = 2.5", {"f": 1.0, "i": 1})
    assert after.properties == {"f": 2.0, "i": 2.5}
    assert isinstance(after.properties["f"], float)


def test_system_properties() -> None:
    after = act(
        "SET sys.Label = 'new'; SET sys.CorrelationId = sys.MessageId + '-x'; SET sys.To = NULL;"
        "REMOVE sys.ReplyTo; SET sys.TimeToLive = @day; SET sys.[contenttype] = 'text/plain'",
        given={"day": timedelta(days=1)},
        **{"message_id": "m", "to": "t", "reply_to": "r", "subject": "old", "body": b"body"},
    )
    assert after == Message(
        body=b"body", message_id="m", subject="new", correlation_id="m-x",
        time_to_live_ms=86_400_000, content_type="text/plain",
    )  # fmt: skip
    assert act("REMOVE sys.TimeToLive", time_to_live_ms=5).time_to_live_ms is None
    assert act("SET sys.SessionId = 's'", partition_key="s").session_id == "s"


@pytest.mark.parametrize(
    "text",
    [
        *("SET a = 1 / 0", "SET a = 'x' * 2", "SET sys.Label = 1", "SET sys.TimeToLive = 1"),
        *("SET sys.TimeToLive = @none", "SET sys.MessageId = long", "SET a = @day"),
        *("SET sys.SessionId = 'other'", "SET a = long + long", "SET sys.To = TRUE"),
    ],
)
def test_what_cannot_be_done_fails_and_changes_nothing(text: str) -> None:
    given = {"day": timedelta(days=1), "none": timedelta(0)}
    before = subject({"long": "x" * 20_000}, partition_key="key")
    bytes_before = encode(before.message)
    with pytest.raises(FilterFailed):
        compile_action(f"SET b = 1; REMOVE long2; {text}", given)(before)
    assert encode(before.message) == bytes_before


def test_texts_cannot_be_doubled_without_end() -> None:
    with pytest.raises(FilterFailed, match="32768"):
        act("SET a = a + a;" * 32, {"a": "x"})


MESSAGE: dict[str, Any] = {
    **{"message_id": "m", "correlation_id": "c", "subject": "s", "to": "t", "reply_to": "r"},
    **{"session_id": "g", "reply_to_session_id": "q", "content_type": "text/plain"},
}


@pytest.mark.parametrize("field", MESSAGE)
def test_correlation_of_every_system_property(field: str) -> None:
    value: Any = MESSAGE[field]
    matches = compile_correlation(CorrelationFilter(**{field: value}))
    assert matches(subject(**MESSAGE)) is True
    assert matches(subject(**(MESSAGE | {field: value.upper()}))) is False
    assert matches(subject()) is False


def test_correlation_of_properties() -> None:
    properties = {"color": "red", "n": 2, "f": 2.0, "b": True, "t": NOON, "raw": b"\0", "no": None}
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"color": "red"}, True),
        ({"COLOR": "red"}, True),
        ({"color": "Red"}, False),
        ({"color": "red", "n": 2}, True),
        ({"color": "red", "n": 3}, False),
        ({"n": 2.0, "f": 2}, True),
        ({"n": "2"}, False),
        ({"b": 1}, False),
        ({"b": True, "t": NOON, "raw": b"\0"}, True),
        ({"no": 1}, False),
        ({"absent": 1}, False),
    ]
    for wanted, answer in cases:
        matches = compile_correlation(CorrelationFilter(properties=wanted))
        assert matches(subject(properties)) is answer, wanted
    both = compile_correlation(CorrelationFilter(subject="s", properties={"color": "red"}))
    assert both(subject(properties, subject="s")) is True
    assert both(subject(properties, subject="x")) is False


@pytest.mark.parametrize(
    "fields",
    [
        *({}, {"subject": 1}, {"properties": {"a": None}}, {"properties": {"a": [1]}}),
        *({"properties": {"a": 1, "A": 2}}, {"properties": {"": 1}}, {"properties": {1: 1}}),
        *({"properties": [1]}, {"to": "\ud800"}, {"to": "x" * 32_769}, {"properties": None}),
    ],
)
def test_correlation_filters_that_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidFilter):
        CorrelationFilter(**fields)


@pytest.mark.parametrize(
    ("filter", "answers"),
    [
        (TrueFilter(), (True, True)),
        (FalseFilter(), (False, False)),
        (SqlFilter("n > @least", {"@least": 2}), (True, False)),
        (SqlFilter("absent > 1"), (False, False)),  # unknown does not select
        (CorrelationFilter(properties={"n": 3}), (True, False)),
    ],
)
def test_a_rule_selects(filter: Any, answers: tuple[bool, bool]) -> None:
    rule = compile_rule(Rule("rule", filter))
    assert tuple(rule.selects(subject({"n": n})) for n in (3, 1)) == answers
    assert rule.act is None
    assert rule.rule.name == "rule"


def test_a_rule_acts() -> None:
    action = SqlAction("SET n = n + @by", {"by": 1})
    rule = compile_rule(Rule("rule", SqlFilter("n > 2"), action))
    assert rule.act is not None
    assert rule.act(subject({"n": 3})).properties == {"n": 4}


def test_a_rule_fails_where_its_filter_does() -> None:
    rule = compile_rule(Rule("rule", SqlFilter("1 / n = 1")))
    assert rule.selects(subject({"n": 1})) is True
    with pytest.raises(FilterFailed):
        rule.selects(subject({"n": 0}))


def test_names_of_rules() -> None:
    for name in (DEFAULT_RULE, "x", "x" * 50, "a.b-c_d", "ünï"):
        assert Rule(name).name == name
    for wrong in ("", "x" * 51, "a/b", "a\\b", "a?", "a#", "a@b", "a\nb", "\ud800", None, 1):
        with pytest.raises(InvalidName):
            Rule(wrong)  # type: ignore[arg-type]


def test_rules_of_other_things() -> None:
    for parts in (("n = 1",), (None,), (TrueFilter(), "SET a = 1"), (TrueFilter(), TrueFilter())):
        with pytest.raises(InvalidFilter):
            Rule("rule", *parts)


RULES = [
    Rule(DEFAULT_RULE),
    Rule("none", FalseFilter()),
    Rule("sql", SqlFilter("a = 1"), SqlAction("SET a = 2")),
    Rule(
        "parameters",
        SqlFilter("a = @t", {"t": NOON, "d": timedelta(days=-1, microseconds=1), "f": 1.0}),
        SqlAction("SET a = @n", {"n": None, "b": True, "i": (1 << 63) - 1}),
    ),
    Rule("correlation", CorrelationFilter(subject="s", properties={"raw": b"\0\xff", "t": NOON})),
    Rule("zoneless", SqlFilter("a = @t", {"t": NOON.replace(tzinfo=ZONELESS)})),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_come_back_as_they_were_stored(rule: Rule) -> None:
    plain = to_plain(rule)
    assert from_plain(plain) == rule
    assert from_plain(json.loads(json.dumps(plain))) == rule
    assert from_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(plain))) == rule
    assert repr(from_plain(plain)) == repr(rule)  # 1.0 is not 1


@pytest.mark.parametrize(
    "plain",
    [
        *(None, [], "rule", {}, {"name": 1}, {"name": "x", "filter": {"type": "other"}}),
        *({"name": "x", "filter": 1}, {"name": "x", "filter": {"type": "sql"}}),
        {"name": "x", "filter": {"type": "sql", "expression": "a ="}},
        {"name": "x", "filter": {"type": "sql", "expression": "a = 1", "parameters": 1}},
        {"name": "x", "filter": {"type": "true"}, "action": {"type": "sql", "expression": ""}},
        *(
            {"name": "x", "filter": {"type": "correlation", "properties": {"a": value}}}
            for value in ({}, {"time": "never"}, {"other": 1}, {"time": 1}, {"a": 1, "b": 2})
        ),
    ],
)
def test_what_is_no_rule_is_refused(plain: Any) -> None:
    with pytest.raises(InvalidFilter):
        from_plain(plain)
