"""The steps of a rule on one message are counted, and bounded whatever the message is like (B3)."""

from __future__ import annotations

from typing import Any

import pytest

from onibus.core.errors import FilterFailed
from onibus.core.limits import RULE_STEPS_MAX
from onibus.core.rules.sql_action import compile_action
from onibus.core.rules.sql_compile import compile_filter
from onibus.core.rules.subject import FOLDED, SCANNED
from tests.core.rules.helpers import evaluate, subject

MANY = {f"p{number}": number for number in range(RULE_STEPS_MAX // 4)}


@pytest.mark.promise("B3")
@pytest.mark.parametrize(("length", "fails"), [(RULE_STEPS_MAX - 1, False), (RULE_STEPS_MAX, True)])
def test_like_takes_a_step_for_each_character(length: int, fails: bool) -> None:
    properties = {"p": "a" * length}
    if fails:
        with pytest.raises(FilterFailed, match=f"more than {RULE_STEPS_MAX} steps"):
            evaluate("p LIKE '%a_b%'", properties)
    else:
        assert evaluate("p LIKE '%a_b%'", properties) is False


@pytest.mark.promise("B3")
@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(["p LIKE '%b%'"] * 8),
        " OR ".join(["p = q"] * 8),
        "p IN (q, q, q, q, q, q, q, q)",
        " OR ".join(["p(p) <> 1"] * 8),
        " OR ".join(["p LIKE r"] * 8),
    ],
)
def test_whatever_looks_at_long_strings_is_counted(text: str) -> None:
    short: dict[str, Any] = {"p": "a", "q": "b", "r": "%b%"}
    assert evaluate(text, short) is not True
    length = RULE_STEPS_MAX // 2 * (FOLDED if "p(p)" in text else SCANNED) // 3
    long = {"p": "a" * length, "q": "a" * (length - 1) + "b", "r": "%b%"}
    with pytest.raises(FilterFailed, match="steps"):
        evaluate(text, long)


@pytest.mark.promise("B3")
def test_a_pattern_that_is_computed_is_counted_too() -> None:
    text = " OR ".join(["p LIKE r"] * 12)
    assert evaluate(text, {"p": "a", "r": "%b"}) is False
    with pytest.raises(FilterFailed, match="steps"):
        evaluate(text, {"p": "a", "r": "_" * 1_024})


@pytest.mark.promise("B3")
def test_each_rule_begins_anew() -> None:
    one = subject({"p": "a" * (RULE_STEPS_MAX // 2)})
    condition = compile_filter("p LIKE '%a_b%'")
    assert [condition(one) for _ in range(5)] == [False] * 5


@pytest.mark.promise("B3")
def test_an_action_is_counted() -> None:
    few = "; ".join(f"SET n{at} = 1" for at in range(2))
    compile_action(few)(subject({"p": 1}))
    many = "; ".join(f"SET n{at} = 1" for at in range(30))
    compile_action(many)(subject({"p": 1}))
    with pytest.raises(FilterFailed, match="steps"):
        compile_action(many)(subject(MANY))
    removing = "; ".join(f"REMOVE n{at}" for at in range(30))
    with pytest.raises(FilterFailed, match="steps"):
        compile_action(removing)(subject(MANY))
