"""A rule: its name, which messages it selects, and what it does to them.

Rules are checked when they are made. They are stored as plain values (`to_plain`, `from_plain`:
dicts, lists, strings, numbers, booleans and None), in which the kinds that JSON lacks are written
{"time": "2026-01-01T00:00:00+00:00"}, {"duration_us": 1500000}, {"binary": "00ff"} and
{"number": "inf"}. They are run after `compile_rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import cached_property
from math import isfinite
from typing import Any

import msgspec

from onibus.core.errors import InvalidFilter, InvalidName
from onibus.core.limits import RULE_NAME_LENGTH_MAX, SQL_LENGTH_MAX
from onibus.core.message import Message
from onibus.core.rules.correlation import CorrelationFilter, compile_correlation
from onibus.core.rules.sql_action import Act, compile_action
from onibus.core.rules.sql_compile import Condition, Cost, compile_filter, needed_text, work_of
from onibus.core.rules.sql_parser import parse_action, parse_filter
from onibus.core.rules.subject import Subject
from onibus.core.rules.values import ZONELESS, is_zoneless

#: The name of the rule that every new subscription has.
DEFAULT_RULE = "$Default"

#: Steps of making a copy of a message, about.
COPY_STEPS = 100

_NOT_IN_NAMES = frozenset("/\\?#@")
_MICROSECOND = timedelta(microseconds=1)


class TrueFilter(msgspec.Struct, frozen=True, tag="true"):
    """Selects every message."""


class FalseFilter(msgspec.Struct, frozen=True, tag="false"):
    """Selects no message."""


class SqlFilter(msgspec.Struct, frozen=True, tag="sql"):
    """Selects the messages for which an expression is true."""

    expression: str
    parameters: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_parameters(self.parameters)
        compile_filter(self.expression, self.parameters)


class SqlAction(msgspec.Struct, frozen=True, tag="sql"):
    """Changes a copy of the message."""

    expression: str
    parameters: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_parameters(self.parameters)
        compile_action(self.expression, self.parameters)


Filter = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


class Rule(msgspec.Struct, frozen=True, dict=True):
    """One way into a subscription."""

    name: str
    filter: Filter = TrueFilter()
    action: SqlAction | None = None

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not 0 < len(name) <= RULE_NAME_LENGTH_MAX:
            raise InvalidName(f"a rule name has 1 to {RULE_NAME_LENGTH_MAX} characters")
        if not name.isprintable() or _NOT_IN_NAMES & set(name):
            raise InvalidName(f"a rule name may not contain {' '.join(sorted(_NOT_IN_NAMES))}")
        if not isinstance(self.filter, Filter):
            raise InvalidFilter(f"a rule's filter cannot be a {type(self.filter).__name__}")
        if not isinstance(self.action, SqlAction | None):
            raise InvalidFilter(f"a rule's action cannot be a {type(self.action).__name__}")

    @cached_property
    def compiled(self) -> CompiledRule:
        """The rule ready to be run, compiled once for all partitions."""
        return compile_rule(self)


class CompiledRule:
    """A rule, ready to be run on messages."""

    __slots__ = ("act", "condition", "needs", "rule", "work")

    def __init__(
        self,
        rule: Rule,
        condition: Condition,
        act: Act | None,
        needs: tuple[str, str] | None = None,
        work: Cost | None = None,
    ) -> None:
        self.rule = rule
        self.work = work or Cost()
        #: a property, and the string without which the rule selects nothing (`needed_text`)
        self.needs = needs
        #: True if the message is selected; False, or None for unknown, if it is not
        self.condition = condition
        #: gives the message as the action leaves it; None where the rule has no action
        self.act: Callable[[Subject], Message] | None = act

    def selects(self, subject: Subject) -> bool:
        """Return whether the filter is true, not false or unknown. May raise `FilterFailed`."""
        return self.condition(subject) is True


def compile_rule(rule: Rule) -> CompiledRule:
    """Return a rule ready to be run."""
    action = rule.action
    act = None if action is None else compile_action(action.expression, action.parameters)
    needs, nodes = None, []
    if isinstance(rule.filter, SqlFilter):
        node = parse_filter(rule.filter.expression, rule.filter.parameters, SQL_LENGTH_MAX)
        needs = needed_text(node)
        nodes.append(node)
    work = work_of(tuple(nodes))
    if isinstance(rule.filter, CorrelationFilter):
        work = work._replace(steps=rule.filter.count())
    if action is not None:
        statements = parse_action(action.expression, action.parameters, SQL_LENGTH_MAX)
        done = work_of(tuple(statements))
        # A copy of the message is made, and what changed is encoded.
        steps = work.steps + COPY_STEPS + done.steps
        work = Cost(steps, True, work.stamped or done.stamped)
    return CompiledRule(rule, _condition(rule.filter), act, needs, work)


def compile_rules(rules: Iterable[object]) -> None:
    """Compile the rules among these; any thread may do it."""
    for rule in rules:
        if isinstance(rule, Rule):
            _ = rule.compiled


def _condition(wanted: Filter) -> Condition:
    if isinstance(wanted, SqlFilter):
        return compile_filter(wanted.expression, wanted.parameters)
    if isinstance(wanted, CorrelationFilter):
        return compile_correlation(wanted)
    answer = isinstance(wanted, TrueFilter)
    return lambda subject: answer


def to_plain(rule: Rule) -> dict[str, Any]:
    """Return a rule as plain values."""
    plain: dict[str, Any] = msgspec.to_builtins(rule, builtin_types=_KEPT, enc_hook=_no_other)
    for part in (plain["filter"], plain["action"]):
        for field in ("parameters", "properties"):
            if part is not None and field in part:
                part[field] = {name: plain_value(value) for name, value in part[field].items()}
    return plain


def from_plain(plain: Any) -> Rule:
    """Return the rule of plain values, checked; raise `InvalidFilter` if they are not a rule."""
    try:
        parts = {"filter": plain.get("filter"), "action": plain.get("action")}
        for name, part in parts.items():
            if part is not None:
                parts[name] = part | {
                    field: {key: rich_value(value) for key, value in part[field].items()}
                    for field in ("parameters", "properties")
                    if field in part
                }
        return msgspec.convert(plain | parts, Rule, builtin_types=_KEPT)
    except (msgspec.ValidationError, ValueError, TypeError, AttributeError) as error:
        raise InvalidFilter(f"not a rule: {error}") from None


_KEPT = (bytes, datetime, timedelta)


def _no_other(value: Any) -> Any:
    raise TypeError(f"a {type(value).__name__} in a rule")


def plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        shown = value.replace(tzinfo=None) if is_zoneless(value) else value
        return {"time": shown.isoformat()}
    if isinstance(value, timedelta):
        return {"duration_us": value // _MICROSECOND}
    if isinstance(value, bytes):
        return {"binary": value.hex()}
    if isinstance(value, float) and not isfinite(value):
        return {"number": str(value)}
    return value


def rich_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "time":
        time = datetime.fromisoformat(content)
        return time if time.tzinfo is not None else time.replace(tzinfo=ZONELESS)
    if kind == "duration_us":
        return timedelta(microseconds=content)
    if kind == "binary":
        return bytes.fromhex(content)
    if kind == "number":
        return float(content)
    raise ValueError(f"unknown kind {kind!r}")


def _check_parameters(parameters: Any) -> None:
    if not isinstance(parameters, dict):
        raise InvalidFilter("parameters must be a dict of names and values")
