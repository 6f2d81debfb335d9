"""Rules as JSON: a filter has a `type`; values are encoded as in message properties."""

from __future__ import annotations

import msgspec

from onibus.api.messages import Json, plain_values, rich_values
from onibus.core.rules.correlation import FIELDS, CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter


class AllMessages(
    msgspec.Struct, tag_field="type", tag="true", frozen=True, forbid_unknown_fields=True
):
    """A filter that selects every message."""


class NoMessages(
    msgspec.Struct, tag_field="type", tag="false", frozen=True, forbid_unknown_fields=True
):
    """A filter that selects no message."""


class Sql(msgspec.Struct, tag_field="type", tag="sql", forbid_unknown_fields=True):
    """A filter that selects the messages for which an expression is true."""

    expression: str
    parameters: dict[str, Json] = {}


class Correlation(
    msgspec.Struct, tag_field="type", tag="correlation", kw_only=True, forbid_unknown_fields=True
):
    """A filter that selects messages whose named properties all equal these."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    subject: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: dict[str, Json] = {}


class Action(msgspec.Struct, forbid_unknown_fields=True):
    """An action that changes a copy of the message."""

    expression: str
    parameters: dict[str, Json] = {}


class RuleJson(msgspec.Struct, forbid_unknown_fields=True):
    """A rule of a subscription: a filter, and an optional action."""

    name: str
    filter: AllMessages | NoMessages | Sql | Correlation = AllMessages()
    action: Action | None = None


def rule_of(given: RuleJson) -> Rule:
    """Return a rule for the bus."""
    action = given.action
    return Rule(
        given.name,
        _filter_of(given.filter),
        None if action is None else SqlAction(action.expression, rich_values(action.parameters)),
    )


def _filter_of(
    given: AllMessages | NoMessages | Sql | Correlation,
) -> TrueFilter | FalseFilter | SqlFilter | CorrelationFilter:
    if isinstance(given, Sql):
        return SqlFilter(given.expression, rich_values(given.parameters))
    if isinstance(given, Correlation):
        named = {field: getattr(given, field) for field in FIELDS}
        return CorrelationFilter(**named, properties=rich_values(given.properties))
    return TrueFilter() if isinstance(given, AllMessages) else FalseFilter()


def rule_out(rule: Rule) -> RuleJson:
    """Return a rule for a response."""
    chosen, action = rule.filter, rule.action
    told: AllMessages | NoMessages | Sql | Correlation
    if isinstance(chosen, SqlFilter):
        told = Sql(chosen.expression, plain_values(chosen.parameters))
    elif isinstance(chosen, CorrelationFilter):
        named = {field: getattr(chosen, field) for field in FIELDS}
        told = Correlation(**named, properties=plain_values(chosen.properties))
    else:
        told = AllMessages() if isinstance(chosen, TrueFilter) else NoMessages()
    done = None if action is None else Action(action.expression, plain_values(action.parameters))
    return RuleJson(rule.name, told, done)
