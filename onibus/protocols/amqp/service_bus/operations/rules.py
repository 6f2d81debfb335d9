"""Rules of a subscription, as the rule manager of the clients asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.core.errors import InvalidArgument
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
from onibus.directory.entity_rules import by_name, topic_rules, without_rule
from onibus.directory.namespace import ChangeRules
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus.incoming import UNKNOWN, plain_value
from onibus.protocols.amqp.service_bus.operations.operation import Operation
from onibus.protocols.amqp.service_bus.operations.peeking import NO_CONTENT
from onibus.protocols.amqp.service_bus.requests import Request
from onibus.security.rights import Right

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.management import ManagementNode

#: Descriptors of rules in a response. Those of filters have one digit less, as clients expect.
_RULE = 0x13700000004
_EMPTY_ACTION, _SQL_ACTION = 0x13700000005, 0x13700000006
_SQL, _TRUE, _FALSE, _CORRELATION = 0x1370000006, 0x1370000007, 0x1370000008, 0x1370000009

#: The words of a correlation filter in a request, and the fields that they are, in their order.
_FIELDS = {
    "correlation-id": "correlation_id",
    "message-id": "message_id",
    "to": "to",
    "reply-to": "reply_to",
    "label": "subject",
    "session-id": "session_id",
    "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}
_TOP_MAX = 2_000


def add(node: ManagementNode, request: Request) -> None:
    """Add a rule."""
    name = str(request.argument("rule-name", str))
    rule = _rule(name, request.argument("rule-description", dict))

    def added(rules: list[Rule]) -> list[Rule]:
        after = [*rules, rule]
        node.profile.check_filters(topic_rules(node.broker, node.place.entity, after))
        return after

    _change(node, request, added)


def remove(node: ManagementNode, request: Request) -> None:
    """Delete a rule."""
    name = str(request.argument("rule-name", str))
    _change(node, request, lambda rules: without_rule(rules, name))


def _change(node: ManagementNode, request: Request, change: ChangeRules) -> None:
    """Change the rules now, or when the transaction of the request commits (P11)."""
    transaction = node.transaction_of(request)
    if transaction is not None:
        transaction.change_rules(node.place.entity, change)
        node.say(request, 200)
        return
    node.ask(
        request,
        lambda reply: node.broker.namespace.change_rules(node.place.entity, change, reply),
    )


def enumerate_(node: ManagementNode, request: Request) -> None:
    """Tell the rules."""
    skip = max(request.argument("skip", int), 0)
    top = min(max(request.argument("top", int), 0), _TOP_MAX)
    rules = by_name(node.broker.find(node.place.entity, "subscription").rules)[skip : skip + top]
    told = to.list_([to.text_map({"rule-description": _described(rule)}) for rule in rules])
    if rules:
        node.say(request, 200, body=to.text_map({"rules": told}))
    else:
        node.say(request, NO_CONTENT, "No rules", to.text_map({"rules": told}))


def _rule(name: str, given: dict[Any, Any]) -> Rule:
    sql, correlation = given.get("sql-filter"), given.get("correlation-filter")
    action = given.get("sql-rule-action")
    act = None if action is None else SqlAction(_expression("sql-rule-action", action))
    if correlation is not None:
        return Rule(name, _correlation(correlation), act)
    if sql is None:
        return Rule(name, TrueFilter(), act)
    expression = _expression("sql-filter", sql)
    # Clients have no other words for these two.
    compact = expression.replace(" ", "")
    if compact == "1=1":
        return Rule(name, TrueFilter(), act)
    return Rule(name, FalseFilter() if compact == "1=0" else SqlFilter(expression), act)


def _expression(name: str, given: Any) -> str:
    expression = given.get("expression") if isinstance(given, dict) else None
    if not isinstance(expression, str):
        raise InvalidArgument(f"{name} must have an expression")
    return str(expression)


def _correlation(given: Any) -> CorrelationFilter:
    if not isinstance(given, dict):
        raise InvalidArgument("correlation-filter must be a map")
    fields = {
        field: str(given[word]) for word, field in _FIELDS.items() if given.get(word) is not None
    }
    wanted = given.get("properties") or {}
    if not isinstance(wanted, dict):
        raise InvalidArgument("the properties of a correlation-filter must be a map")
    properties = {str(name): plain_value(value) for name, value in wanted.items()}
    if UNKNOWN in properties.values():
        raise InvalidArgument("a property of the filter has an unsupported type")
    return CorrelationFilter(**fields, properties=properties)


def _described(rule: Rule) -> bytes:
    action = to.described(_EMPTY_ACTION, to.EMPTY_LIST)
    if rule.action is not None:
        action = to.described(_SQL_ACTION, to.list_([to.string(rule.action.expression)]))
    return to.described(_RULE, to.list_([_filter(rule.filter), action, to.string(rule.name)]))


def _filter(wanted: Any) -> bytes:
    if isinstance(wanted, SqlFilter):
        return to.described(_SQL, to.list_([to.string(wanted.expression)]))
    if isinstance(wanted, CorrelationFilter):
        texts = [to.string(getattr(wanted, field)) for field in _FIELDS.values()]
        return to.described(_CORRELATION, to.list_([*texts, to.encode(wanted.properties)]))
    return to.described(_TRUE if isinstance(wanted, TrueFilter) else _FALSE, to.EMPTY_LIST)


OPERATIONS = {
    # As in the service, a receiver may choose what it receives.
    "com.microsoft:add-rule": Operation(Right.LISTEN, add, True),
    "com.microsoft:remove-rule": Operation(Right.LISTEN, remove, True),
    "com.microsoft:enumerate-rules": Operation(Right.LISTEN, enumerate_),
}
