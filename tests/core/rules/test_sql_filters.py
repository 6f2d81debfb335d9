"""What filters mean: comparing, logic with unknown, IN, IS NULL, EXISTS, computing, names."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onibus.core.errors import FilterFailed
from onibus.core.message import ReceivedMessage
from onibus.core.rules.sql_compile import compile_filter
from onibus.core.rules.subject import Subject, subject_of
from tests.core.rules.helpers import NOON_MS, evaluate, subject

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAST = (1 << 63) - 1

#: A condition of each truth, of a message without properties.
TRUTHS = {True: "1 = 1", False: "1 = 2", None: "absent = 1"}


def kleene_and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def kleene_or(left: bool | None, right: bool | None) -> bool | None:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


@pytest.mark.parametrize(("left", "right"), list(itertools.product(TRUTHS, repeat=2)))
def test_and_and_or_know_three_truths(left: bool | None, right: bool | None) -> None:
    assert evaluate(f"{TRUTHS[left]} AND {TRUTHS[right]}") is kleene_and(left, right)
    assert evaluate(f"{TRUTHS[left]} OR {TRUTHS[right]}") is kleene_or(left, right)


@pytest.mark.parametrize("truths", list(itertools.product(TRUTHS, repeat=3)))
def test_chains_of_three(truths: tuple[bool | None, bool | None, bool | None]) -> None:
    first, second, third = truths
    both = kleene_and(kleene_and(first, second), third)
    assert evaluate(" AND ".join(TRUTHS[truth] for truth in truths)) is both
    either = kleene_or(kleene_or(first, second), third)
    assert evaluate(" OR ".join(TRUTHS[truth] for truth in truths)) is either
    mixed = kleene_or(first, kleene_and(second, third))
    assert evaluate("{} OR {} AND {}".format(*(TRUTHS[truth] for truth in truths))) is mixed


@pytest.mark.parametrize(("truth", "negated"), [(True, False), (False, True), (None, None)])
def test_not(truth: bool | None, negated: bool | None) -> None:
    assert evaluate(f"NOT {TRUTHS[truth]}") is negated
    assert evaluate(f"NOT NOT {TRUTHS[truth]}") is truth
    assert evaluate(f"NOT ({TRUTHS[truth]})") is negated


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("n = 3", True),
        ("n = 3.0", True),
        ("n != 3", False),
        ("n <> 4", True),
        ("n < 3.5", True),
        ("n <= 3", True),
        ("n > 2 AND n >= 3", True),
        ("3 = n", True),
        ("f = 0.5", True),
        ("f < n", True),
        ("s = 'red'", True),
        ("s = 'Red'", False),  # texts keep their case
        ("s < 'reds' AND s > 'Red'", True),
        ("s = 'it''s'", False),
        ("quote = 'it''s'", True),
        ("b = TRUE", True),
        ("b <> false", True),
        ("t = TRUE", None),  # a text is no boolean
        ("b = 1", None),  # nor is a boolean a number
        ("b < FALSE", None),  # booleans have no order
        ("s = 3", None),
        ("n = '3'", None),
        ("NOT n = '3'", None),  # unknown stays unknown
        ("bytes = bytes", True),
        ("bytes < bytes", None),
        ("null = NULL", None),
        ("null <> 1", None),
        ("absent = absent", None),
        ("nan = nan", False),
        ("nan <> nan", True),
        ("big = 9007199254740992.0", False),  # by value, not by rounding
    ],
)
def test_comparisons(text: str, answer: bool | None) -> None:
    properties = {
        **{"n": 3, "f": 0.5, "s": "red", "quote": "it's", "b": True, "t": "TRUE", "null": None},
        **{"bytes": b"\x01", "nan": math.nan, "big": 9_007_199_254_740_993},
    }
    text = text.replace("null =", "[null] =").replace("null <>", "[null] <>")
    assert evaluate(text, properties) is answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("n IN (1, 2, 3)", True),
        ("n IN (1, 2)", False),
        ("n NOT IN (1, 2)", True),
        ("n IN (1, NULL)", None),
        ("n IN (3, NULL)", True),
        ("n NOT IN (1, NULL)", None),
        ("n IN (3.0)", True),
        ("n IN ('3')", None),
        ("n IN ('3', 3)", True),
        ("n IN ('3', 4)", None),
        ("n IN (m - 1, 1 + 1)", True),
        ("absent IN (1)", None),
        ("absent NOT IN (1)", None),
        ("NULL IN (NULL)", None),
        ("s IN ('red', 'blue')", True),
        ("s IN ('RED')", False),
        ("b IN (TRUE)", True),
        ("b IN (1)", None),
        ("n IN (@three)", True),
        ("nan IN (@nan)", False),
        ("3 IN (n)", True),
    ],
)
def test_in(text: str, answer: bool | None) -> None:
    properties = {"n": 3, "m": 4, "s": "red", "b": True, "nan": math.nan}
    assert evaluate(text, properties, given={"@three": 3, "nan": math.nan}) is answer


def test_null_and_exists() -> None:
    properties = {"there": 1, "empty": None}
    for text, answer in [
        ("there IS NULL", False),
        ("there IS NOT NULL", True),
        ("empty IS NULL", True),
        ("absent IS NULL", True),
        ("absent IS NOT NULL", False),
        ("EXISTS(there)", True),
        ("EXISTS(THERE)", True),
        ("exists ( user.empty )", True),
        ("EXISTS(absent)", False),
        ("NOT EXISTS(absent)", True),
        ("EXISTS(property('the' + 're'))", True),
        ("property('nothing') IS NULL", True),
        ("EXISTS(p(NULL))", False),
        ("EXISTS(sys.MessageId)", True),
        ("EXISTS(sys.To)", False),
        ("sys.To IS NULL", True),
    ]:
        assert evaluate(text, properties, message_id="m") is answer, text


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 2 - 3", 5),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("7.5 % 2", 1.5),
        ("-7.5 % 2", -1.5),
        ("7 / 2.0", 3.5),
        ("1.0 / 0", math.inf),
        ("-1.0 / 0", -math.inf),
        ("1 / -0.0", -math.inf),
        ("- - 3", 3),
        ("+ 3", 3),
        ("-(2 + 1)", -3),
        ("2 * -3", -6),
        ("'a' + 'b' + 'c'", "abc"),
        ("'a' + 1", "a1"),
        ("1 + 'a'", "1a"),
        ("1 + 2 + 'a'", "3a"),
        (".5 + 1.", 1.5),
        ("1e3", 1000.0),
        ("0.5E-2", 0.005),
        (f"{LAST}", LAST),
        ("-9223372036854775808", -LAST - 1),
        (f"-{LAST} - 1", -LAST - 1),
    ],
)
def test_computing(text: str, result: Any) -> None:
    assert evaluate(f"{text} = @result", given={"result": result}) is True
    assert evaluate(f"@result = {text}", given={"result": result}) is True


def test_what_is_no_number_is_equal_to_nothing() -> None:
    for text in ("0.0 / 0", "1.0 % 0", "(1.0 / 0) % 2"):
        assert evaluate(f"{text} = {text}") is False, text


@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "%"])
def test_unknown_stays_unknown_in_computing(sign: str) -> None:
    assert evaluate(f"absent {sign} 1 = 1") is None
    assert evaluate(f"1 {sign} NULL = 1") is None
    assert evaluate(f"-absent {sign} 1 = 1") is None
    assert evaluate("+absent = 1") is None


@pytest.mark.parametrize(
    "text",
    [
        *("1 / 0 = 1", "1 % 0 = 1", "n / (n - n) = 1"),
        *(
            f"{LAST} + 1 = 1",
            f"-{LAST} - 2 = 1",
            f"{LAST} * 2 = 1",
            "-9223372036854775808 / -1 = 1",
        ),
        *("-(-9223372036854775808) = 1", "'a' - 'b' = 1", "'a' * 2 = 1", "TRUE + 1 = 1"),
        *("'a' + 1.5 = 1", "'a' + TRUE = 1", "-'a' = 1", "+TRUE = 1", "p(1) = 1"),
        *("s LIKE n", "s LIKE s ESCAPE 'ab'", "s LIKE e ESCAPE '!'", "s LIKE '%' ESCAPE n"),
        *("sys.EnqueuedTimeUtc + 1 = 1", "sys.EnqueuedTimeUtc + @long > sys.EnqueuedTimeUtc"),
        *("long + 'x' = 'x'", "-@long = @long"),
    ],
)
def test_what_cannot_be_evaluated_fails(text: str) -> None:
    properties = {"n": 3, "s": "a", "e": "a!", "long": "x" * 32_768}
    with pytest.raises(FilterFailed) as caught:
        evaluate(text, properties, given={"long": timedelta.max})
    assert caught.value.code == "filter-failed"
    # What is decided before needs no evaluation.
    assert evaluate(f"1 = 2 AND {text}", properties, given={"long": timedelta.max}) is False
    assert evaluate(f"1 = 1 OR {text}", properties, given={"long": timedelta.max}) is True


def test_texts_grow_to_their_limit_and_no_further() -> None:
    assert evaluate("long + 'x' <> ''", {"long": "x" * 32_767}) is True


def test_names_are_found_without_case() -> None:
    properties = {"Color": "red", "color": "blue", "Ünïcode": 1, "a b]c": 2, 'say "x"': 3, "set": 4}
    for text in (
        "color = 'blue'",
        "Color = 'red'",
        "COLOR = 'red'",  # none is exact: the first
        "user.Color = 'red'",
        "USER.[color] = 'blue'",
        "ÜNÏCODE = 1",
        "[a b]]c] = 2",
        'user."SAY ""X""" = 3',
        "set = 4",
        "p('COLOR') = 'red'",
        "property('a ' + 'b]c') = 2",
    ):
        assert evaluate(text, properties) is True, text


def test_words_that_look_like_scopes_and_functions_are_names_too() -> None:
    properties = {"sys": 1, "user": 2, "p": 3, "property": 4, "newid": 5, "and": 6}
    text = "sys = 1 AND user = 2 AND p = 3 AND property = 4 AND newid = 5 AND [and] = 6"
    assert evaluate(text, properties) is True


def test_keywords_in_any_case() -> None:
    text = "not (a iS nUlL) AnD a In (1) oR b lIkE 'x!%' EsCaPe '!'"
    assert evaluate(text, {"a": 1}) is True


def test_system_properties() -> None:
    given = {"noon": NOON, "hour": timedelta(hours=1), "early": datetime(2025, 1, 1, tzinfo=UTC)}
    fields: dict[str, Any] = {
        **{"message_id": "m", "correlation_id": "c", "subject": "s", "to": "t", "reply_to": "r"},
        **{"session_id": "g", "partition_key": "g", "reply_to_session_id": "q"},
        **{"content_type": "text/plain", "time_to_live_ms": 60_000},
        **{"scheduled_enqueue_time_ms": NOON_MS, "enqueued_sequence_number": 5},
    }
    for text in (
        "sys.MessageId = 'm'",
        "SYS.messageid = 'm'",
        "sys.CorrelationId = 'c'",
        "sys.Label = 's' AND sys.Subject = 's'",
        "sys.To = 't' AND sys.ReplyTo = 'r'",
        "sys.SessionId = 'g' AND sys.PartitionKey = 'g' AND sys.ReplyToSessionId = 'q'",
        "sys.ContentType LIKE 'text/%'",
        "sys.[Label] = 's'",
        "sys.SequenceNumber = 7",
        "sys.EnqueuedSequenceNumber = 5",
        "sys.DeliveryCount = 0",
        "sys.EnqueuedTimeUtc = @noon",
        "sys.EnqueuedTimeUtc - @hour > @early",
        "sys.EnqueuedTimeUtc - @early > @hour",
        "sys.ScheduledEnqueueTimeUtc = @noon",
        "sys.TimeToLive < @hour AND -@hour < sys.TimeToLive - @hour",
        "sys.TimeToLive + @hour > @hour",
        "sys.ExpiresAtUtc IS NULL",
        "MessageId IS NULL",  # without sys. it is a property of the sender
    ):
        assert evaluate(text, given=given, **fields) is True, text


def test_times_beyond_the_calendar_are_its_end() -> None:
    far = Subject(subject().message, expires_at_ms=1 << 53)
    assert compile_filter("sys.ExpiresAtUtc > @noon", {"noon": NOON})(far) is True


def test_stamps_that_are_not_there_yet_are_null() -> None:
    unsent = Subject(subject().message)
    for name in ("SequenceNumber", "EnqueuedTimeUtc", "TimeToLive", "ScheduledEnqueueTimeUtc"):
        assert compile_filter(f"sys.{name} IS NULL")(unsent) is True, name


def test_properties_that_are_times() -> None:
    properties = {"from": NOON, "to": NOON + timedelta(minutes=5), "naive": datetime(2026, 1, 1)}
    given = {"span": timedelta(minutes=5)}
    assert evaluate("[to] - [from] <= @span AND [from] + @span = [to]", properties, given=given)
    assert evaluate("naive < [to]", properties) is None


def test_parameters() -> None:
    given = {"@Color": "red", "n": 2, "b": True, "none": None, "f": 1.5}
    properties = {"color": "red", "n": 3, "b": True}
    for text, answer in [
        ("color = @color", True),
        ("color = @COLOR", True),
        ("n > @n AND n > @f", True),
        ("b = @b", True),
        ("n = @none", None),
        ("color LIKE @color", True),
        ("n IN (@n, @n + 1)", True),
        ("property(@color) IS NULL", True),
    ]:
        assert evaluate(text, properties, given=given) is answer, text


def test_values_of_subclasses_are_values() -> None:
    class Word(str):
        pass

    class Count(int):
        pass

    properties = {"word": Word("red"), "count": Count(3)}
    assert evaluate("word = 'red' AND word LIKE 'r%' AND word IN ('red')", properties) is True
    assert evaluate("count = 3 AND count + 1 = 4 AND count IN (3)", properties) is True


def test_values_of_no_kind_are_unknown() -> None:
    assert evaluate("odd = 1 OR odd LIKE 'x' OR odd IN (1)", {"odd": [1]}) is None


def test_dead_letters_have_their_reason_as_a_property() -> None:
    message = subject({"a": 1}).message
    received = ReceivedMessage(
        message=message, sequence_number=1, enqueued_time_ms=2, delivery_count=4,
        dead_letter_reason="TooOld", dead_letter_description=None, expires_at_ms=3,
    )  # fmt: skip
    text = "DeadLetterReason = 'TooOld' AND DeadLetterErrorDescription IS NULL AND a = 1"
    assert compile_filter(text)(subject_of(received)) is True
    assert compile_filter("sys.DeliveryCount = 4")(subject_of(received)) is True
    assert message.properties == {"a": 1}


def test_a_filter_is_as_long_as_it_needs_without_getting_deep() -> None:
    wide = " OR ".join(f"a={n}" for n in range(120))
    assert len(wide) < 1_024
    assert evaluate(wide, {"a": 119}) is True
    assert evaluate("+".join(["1"] * 500) + "=500") is True
