"""Random filters against SQLite, an evaluator of three-valued logic that shares nothing with ours.

A failing case prints its seed; `evaluate_case(seed)` is all of it.
"""

from __future__ import annotations

from typing import Any

from onibus.core.errors import FilterFailed
from onibus.core.rules.sql_compile import compile_filter
from tests.core.rules.helpers import subject
from tests.core.rules.sqlite_engine import Generator, SqliteEngine

EXPRESSIONS = 5_000
MESSAGES = 5
#: What SQLite calls NULL and we call an error: divisions by zero. More would hide something.
FAILED_SHARE_MAX = 0.15

#: What the random filters must have in them, some time.
WORDS = (
    *("AND", "OR", "NOT", "IN (", "NOT IN (", "LIKE", "NOT LIKE", "ESCAPE '!'", "ESCAPE @"),
    *("LIKE @", "IS NULL", "IS NOT NULL", "EXISTS(", "NULL", "TRUE", "FALSE", "@p"),
    *("+", "-", "*", "/", "%", "=", "<>", "!=", "<", "<=", ">", ">="),
)

_FAILED: Any = object()


def evaluate_case(seed: int, engine: SqliteEngine) -> list[tuple[str, dict[str, Any], Any, Any]]:
    """Return (filter, properties, our answer, SQLite's answer) of one seed."""
    generator = Generator(seed)
    ours, theirs = generator.filter()
    given = generator.parameters
    condition = compile_filter(ours, given, length_max=10_000)
    found = []
    for _ in range(MESSAGES):
        properties = generator.properties()
        try:
            answer: Any = condition(subject(properties))
        except FilterFailed as error:
            answer = _FAILED if "divided by zero" in str(error) else error
        found.append((ours, properties, answer, engine.evaluate(theirs, properties, given)))
    return found


def test_filters_mean_what_sqlite_says() -> None:
    engine = SqliteEngine()
    used: set[str] = set()
    counts: dict[Any, int] = {True: 0, False: 0, None: 0, _FAILED: 0}
    for seed in range(EXPRESSIONS):
        for text, properties, ours, theirs in evaluate_case(seed, engine):
            counts[ours] = counts.get(ours, 0) + 1
            used.update(word for word in WORDS if word in text)
            assert ours is theirs or ours is _FAILED, (
                f"{text!r} of {properties} is {ours}; SQLite says {theirs}\n"
                f"replay: evaluate_case({seed}, SqliteEngine())"
            )
    assert used == set(WORDS)
    total = EXPRESSIONS * MESSAGES
    assert total - counts[_FAILED] >= 20_000
    assert counts[_FAILED] < FAILED_SHARE_MAX * total, counts
    assert min(counts[True], counts[False], counts[None]) > total / 20, counts
