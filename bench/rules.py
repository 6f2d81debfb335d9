"""Rules: what reading a filter costs, and how many messages a second a compiled one judges.

    python -m bench.rules

The last figures judge one message by 100 filters, as a topic with 100 subscriptions does; ten of
them select it. There are no targets here: those are in the whole path of a topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from onibus.core.message import Message
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import Filter, Rule, SqlFilter, compile_rule
from onibus.core.rules.sql_action import compile_action
from onibus.core.rules.sql_compile import compile_filter
from onibus.core.rules.subject import Subject

FILTERS = {
    "equality": "color = 'red'",
    "a name in another case": "COLOR = 'red'",
    "a property that is not there": "missing = 1",
    "system property": "sys.Label = 'order'",
    "two conditions": "color = 'red' AND quantity > 10",
    "IN of five": "store IN ('s1', 's2', 's3', 's4', 's5')",
    "LIKE 'o%'": "sys.Label LIKE 'o%'",
    "LIKE '_r%d_r'": "sys.Label LIKE '_r%d_r'",
    "arithmetic": "quantity * 2 + 1 > price / 3",
    "long": " OR ".join(f"store = 's{n}'" for n in range(6, 60)),
}
MESSAGE = Message(
    body=b"x" * 1_024,
    subject="order",
    correlation_id="c",
    properties={"color": "red", "quantity": 12, "price": 30, "store": "s5", "region": "north"},
)


def rate(call: Callable[[], object], seconds: float = 0.3) -> float:
    """Return calls a second, the best of three."""
    best = 0.0
    for _ in range(3):
        count, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            for _ in range(100):
                call()
            count += 100
        best = max(best, count / passed)
    return best


def fan_out(filters: list[Filter]) -> Callable[[], int]:
    """Return the judging of one fresh message by all filters."""
    rules = [compile_rule(Rule(f"r{n}", wanted)) for n, wanted in enumerate(filters)]
    conditions = [rule.condition for rule in rules]

    def judge() -> int:
        subject = Subject(MESSAGE, 1, 1)
        return len([True for condition in conditions if condition(subject) is True])

    return judge


def measure() -> list[tuple[str, float, str]]:
    """Return what was measured, and its unit."""
    found = []
    for name, text in FILTERS.items():
        found.append((f"read: {name}", rate(partial(compile_filter, text)), "filters/s"))
        run = partial(compile_filter(text), Subject(MESSAGE, 1, 1))
        found.append((f"run: {name}", rate(run), "messages/s"))
    act = compile_action("SET quantity = quantity / 2; REMOVE price; SET sys.Label = 'new'")
    found.append(("run: an action of three", rate(lambda: act(Subject(MESSAGE))), "messages/s"))
    sql: list[Filter] = [
        SqlFilter(f"color = 'red' AND quantity > {0 if n < 10 else 1_000 + n}") for n in range(100)
    ]
    judge = fan_out(sql)
    assert judge() == 10
    found.append(("100 SQL filters, 10 select", rate(judge), "messages/s"))
    correlations: list[Filter] = [
        CorrelationFilter(subject="order" if n < 10 else f"x{n}") for n in range(100)
    ]
    judge = fan_out(correlations)
    assert judge() == 10
    found.append(("100 correlation filters, 10 select", rate(judge), "messages/s"))
    return found


if __name__ == "__main__":
    for name, value, unit in measure():
        print(f"{name:42} {value:14,.0f} {unit}")
