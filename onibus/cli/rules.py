"""`onibus rule`: the rules that select messages for a subscription."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from onibus.api.entities import subscription_name
from onibus.api.rules import rule_out
from onibus.cli.entities import Subscription, Topic, rule_text
from onibus.cli.session import CommandSession, command
from onibus.cli.values import named, plain_value
from onibus.core.errors import MessageNotFound
from onibus.core.rules.correlation import FIELDS, CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter

rule_app = typer.Typer(
    help="Create, list, show, update or delete rules of subscriptions.", no_args_is_help=True
)

RuleName = Annotated[str, typer.Argument(help="Name of the rule.")]
Sql = Annotated[str | None, typer.Option("--sql", help="Select messages by this SQL filter.")]
Correlation = Annotated[
    list[str] | None,
    typer.Option(
        "--correlation",
        metavar="NAME=VALUE",
        help="Select messages with this field or property. Repeatable.",
    ),
]
Nothing = Annotated[bool, typer.Option("--none", help="Select no messages.")]
Action = Annotated[
    str | None, typer.Option("--action", help="SQL action that changes the message.")
]


def _rule(
    name: str, sql: str | None, correlation: list[str] | None, none: bool, action: str | None
) -> Rule:
    if sum((sql is not None, bool(correlation), none)) > 1:
        raise typer.BadParameter("give at most one of --sql, --correlation and --none")
    chosen: Any = TrueFilter()
    if sql is not None:
        chosen = SqlFilter(sql)
    elif correlation:
        given = named(correlation, "--correlation")
        fields = {key: value for key, value in given.items() if key in FIELDS}
        others = {key: plain_value(value) for key, value in given.items() if key not in FIELDS}
        chosen = CorrelationFilter(**fields, properties=others)
    elif none:
        chosen = FalseFilter()
    return Rule(name, chosen, None if action is None else SqlAction(action))


@command(rule_app, "create")
def create_rule(
    session: CommandSession,
    topic: Topic,
    subscription: Subscription,
    name: RuleName,
    sql: Sql = None,
    correlation: Correlation = None,
    none: Nothing = False,
    action: Action = None,
) -> None:
    """Create a rule. Default: select every message."""
    rule = _rule(name, sql, correlation, none, action)
    session.client.create_rule(subscription_name(topic, subscription), rule)
    session.out.done(rule_out(rule), f"rule {name} created: {rule_text(rule)}")


@command(rule_app, "list")
def list_rules(session: CommandSession, topic: Topic, subscription: Subscription) -> None:
    """List the rules of a subscription."""
    rules = session.client.rules(subscription_name(topic, subscription))
    columns = {"name": lambda one: one.name, "selects → changes": rule_text}
    session.out.rows(
        rules, columns, plain=rule_out, empty="no rules: the subscription gets no messages"
    )


@command(rule_app, "show")
def show_rule(
    session: CommandSession, topic: Topic, subscription: Subscription, name: RuleName
) -> None:
    """Show a rule."""
    rules = session.client.rules(subscription_name(topic, subscription))
    for rule in rules:
        if rule.name.lower() == name.lower():
            session.out.fields(rule_out(rule), {"rule": rule.name, "does": rule_text(rule)})
            return
    raise MessageNotFound(f"no rule {name!r}: see onibus rule list")


@command(rule_app, "update")
def update_rule(
    session: CommandSession,
    topic: Topic,
    subscription: Subscription,
    name: RuleName,
    sql: Sql = None,
    correlation: Correlation = None,
    none: Nothing = False,
    action: Action = None,
) -> None:
    """Replace a rule atomically: each message meets either the old rule or the new one."""
    rule = _rule(name, sql, correlation, none, action)
    session.client.change_rule(subscription_name(topic, subscription), rule)
    session.out.done(rule_out(rule), f"rule {name} updated: {rule_text(rule)}")


@command(rule_app, "delete")
def delete_rule(
    session: CommandSession, topic: Topic, subscription: Subscription, name: RuleName
) -> None:
    """Delete a rule; a subscription without rules gets no messages."""
    session.client.delete_rule(subscription_name(topic, subscription), name)
    session.out.done({"deleted": name}, f"rule {name} deleted")
