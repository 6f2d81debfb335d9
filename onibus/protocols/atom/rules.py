"""Rules as RuleDescription: a filter, an action, when it was made, its name."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from onibus.core.errors import InvalidArgument
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Filter, Rule, SqlAction, SqlFilter, TrueFilter
from onibus.protocols.atom.values import read_values, write_values
from onibus.protocols.atom.xml import SERVICE_BUS, escaped, local, tag, text_of, type_of

#: The properties that a correlation filter can name, in Service Bus order, and our fields.
_CORRELATION = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "subject",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
#: The version of the language that the service tells.
_LEVEL = "<CompatibilityLevel>20</CompatibilityLevel>"


def read_rule(description: Element, name: str) -> Rule:
    """Return the rule of a description; its name is that of the path."""
    return Rule(name, _filter(_part(description, "Filter")), _action(_part(description, "Action")))


def name_of(description: Element, default: str) -> str:
    """Return the name in a description, if it has one."""
    return text_of(_part(description, "Name")) or default


def _part(parent: Element, name: str) -> Element | None:
    return parent.find(f"{{{SERVICE_BUS}}}{name}")


def _filter(given: Element | None) -> Filter:
    if given is None:
        return TrueFilter()
    kind = type_of(given)
    if kind == "SqlFilter":
        parameters = read_values(_part(given, "Parameters"))
        return SqlFilter(text_of(_part(given, "SqlExpression")), parameters)
    if kind == "CorrelationFilter":
        return _correlation(given)
    if kind == "TrueFilter":
        return TrueFilter()
    if kind == "FalseFilter":
        return FalseFilter()
    raise InvalidArgument(f"unknown filter {kind!r}: use SqlFilter or CorrelationFilter")


def _correlation(given: Element) -> CorrelationFilter:
    fields: dict[str, str] = {}
    for part in given:
        name = local(part)
        if name in _CORRELATION:
            fields[_CORRELATION[name]] = text_of(part)
        elif name != "Properties":
            raise InvalidArgument(f"a correlation filter has no {name!r}")
    return CorrelationFilter(**fields, properties=read_values(_part(given, "Properties")))


def _action(given: Element | None) -> SqlAction | None:
    if given is None or type_of(given) == "EmptyRuleAction":
        return None
    if type_of(given) != "SqlRuleAction":
        raise InvalidArgument(f"unknown action {type_of(given)!r}: use SqlRuleAction")
    parameters = read_values(_part(given, "Parameters"))
    return SqlAction(text_of(_part(given, "SqlExpression")), parameters)


def write_rule(rule: Rule, created: str) -> str:
    """Return what a RuleDescription says of a rule."""
    parts = (_told_filter(rule.filter), _told_action(rule.action))
    return "".join(parts) + tag("CreatedAt", created) + tag("Name", escaped(rule.name))


def _told_filter(chosen: Filter) -> str:
    if isinstance(chosen, SqlFilter):
        return _sql("Filter", "SqlFilter", chosen)
    if isinstance(chosen, CorrelationFilter):
        named = {name: getattr(chosen, field) for name, field in _CORRELATION.items()}
        inner = "".join(
            tag(name, escaped(text)) for name, text in named.items() if text is not None
        )
        inner += tag("Properties", write_values(chosen.properties))
        return tag("Filter", inner, 'i:type="CorrelationFilter"')
    if isinstance(chosen, TrueFilter):
        return _sql("Filter", "TrueFilter", SqlFilter("1=1"))
    return _sql("Filter", "FalseFilter", SqlFilter("1=0"))


def _told_action(action: SqlAction | None) -> str:
    if action is None:
        return tag("Action", "", 'i:type="EmptyRuleAction"')
    return _sql("Action", "SqlRuleAction", action)


def _sql(name: str, kind: str, given: SqlFilter | SqlAction) -> str:
    inner = tag("SqlExpression", escaped(given.expression)) + _LEVEL
    inner += tag("Parameters", write_values(given.parameters))
    return tag(name, inner, f'i:type="{kind}"')
