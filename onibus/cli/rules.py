"""`onibus rule`: which messages get into a subscription."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from onibus.api.entities import subscription_name
from onibus.api.rules import rule_out
from onibus.cli.entities import Subscription, Topic, rule_text
from onibus.cli.session import Session, command
from onibus.cli.values import named, plain_value
from onibus.core.errors import MessageNotFound
from onibus.core.rules.correlation import FIELDS, CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter

rule_app = typer.Typer(
    help="Rules of subscriptions: create, list, show, update, delete.", no_args_is_help=True
)

RuleName = Annotated[str, typer.Argument(help="The rule's name.")]
Sql = Annotated[str | None, typer.Option("--sql", help="Messages for which this SQL is true.")]
Correlation = Annotated[
    list[str] | None,
    typer.Option(
        "--correlation", metavar="NAME=VALUE", help="Messages that have this field or property."
    ),
]
Nothing = Annotated[bool, typer.Option("--none", help="No message at all.")]
Action = Annotated[str | None, typer.Option("--action", help="SQL that changes the message.")]


def _rule(
    name: str, sql: str | None, correlation: list[str] | None, none: bool, action: str | None
) -> Rule:
    if sum((sql is not None, bool(correlation), none)) > 1:
        raise typer.BadParameter("give one of --sql, --correlation and --none")
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
    session: Session,
    topic: Topic,
    subscription: Subscription,
    name: RuleName,
    sql: Sql = None,
    correlation: Correlation = None,
    none: Nothing = False,
    action: Action = None,
) -> None:
    """Add a rule; without a filter it selects every message."""
    rule = _rule(name, sql, correlation, none, action)
    session.client.create_rule(subscription_name(topic, subscription), rule)
    session.out.done(rule_out(rule), f"rule {name} is made: {rule_text(rule)}")


@command(rule_app, "list")
def list_rules(session: Session, topic: Topic, subscription: Subscription) -> None:
    """List the rules of a subscription."""
    rules = session.client.rules(subscription_name(topic, subscription))
    columns = {"name": lambda one: one.name, "selects → changes": rule_text}
    session.out.rows(rules, columns, plain=rule_out, empty="no rules: no message gets in")


@command(rule_app, "show")
def show_rule(session: Session, topic: Topic, subscription: Subscription, name: RuleName) -> None:
    """Show a rule."""
    rules = session.client.rules(subscription_name(topic, subscription))
    for rule in rules:
        if rule.name.lower() == name.lower():
            session.out.fields(rule_out(rule), {"rule": rule.name, "does": rule_text(rule)})
            return
    raise MessageNotFound(f"there is no rule {name!r}")


@command(rule_app, "update")
def update_rule(
    session: Session,
    topic: Topic,
    subscription: Subscription,
    name: RuleName,
    sql: Sql = None,
    correlation: Correlation = None,
    none: Nothing = False,
    action: Action = None,
) -> None:
    """Replace a rule, at once: every message meets the old one or the new one."""
    rule = _rule(name, sql, correlation, none, action)
    session.client.change_rule(subscription_name(topic, subscription), rule)
    session.out.done(rule_out(rule), f"rule {name} is changed: {rule_text(rule)}")


@command(rule_app, "delete")
def delete_rule(session: Session, topic: Topic, subscription: Subscription, name: RuleName) -> None:
    """Delete a rule; without any, nothing gets into the subscription."""
    session.client.delete_rule(subscription_name(topic, subscription), name)
    session.out.done({"deleted": name}, f"rule {name} is deleted")
