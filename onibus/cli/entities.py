"""`onibus queue`, `topic` and `subscription`: create, list, show, update and delete entities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from onibus.api.entities import EntityInfo, subscription_name
from onibus.api.rules import rule_out
from onibus.cli.output import age, bytes_text, moment
from onibus.cli.session import CommandSession, command
from onibus.cli.values import settings_of
from onibus.core.rules.rule import Rule, SqlFilter

queue_app = typer.Typer(help="Create, list, show, update or delete queues.", no_args_is_help=True)
topic_app = typer.Typer(help="Create, list, show, update or delete topics.", no_args_is_help=True)
subscription_app = typer.Typer(
    help="Create, list, show, update or delete subscriptions.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="Name of the queue or topic.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic.")]
Subscription = Annotated[str, typer.Argument(help="Name of the subscription, without its topic.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="Set a setting, such as lock_duration_ms=30s. Repeatable.",
    ),
]
Duplicates = Annotated[
    bool, typer.Option("--detect-duplicates", help="Enable duplicate detection.")
]
Sessions = Annotated[bool, typer.Option("--sessions", help="Require sessions.")]
Partitioned = Annotated[bool, typer.Option("--partitioned", help="Use 16 partitions. Default: 1.")]

COLUMNS: dict[str, Callable[[EntityInfo[Any]], Any]] = {
    "name": lambda one: one.name,
    "active": lambda one: one.active_count,
    "held": lambda one: one.held_count,
    "deferred": lambda one: one.deferred_count,
    "scheduled": lambda one: one.scheduled_count,
    "dead": lambda one: one.dead_lettered_count,
    "duplicates": lambda one: one.duplicates_dropped,
    "size": lambda one: bytes_text(one.size_bytes),
    "state": lambda one: one.availability,
}


def entity_plain(info: EntityInfo[Any]) -> Any:
    """Return an entity in its JSON form."""
    plain = {name: getattr(info, name) for name in EntityInfo.__struct_fields__}
    plain["rules"] = [rule_out(rule) for rule in info.rules]
    return plain


def _show(session: CommandSession, info: EntityInfo[Any]) -> None:
    counts = {
        name.removesuffix("_count").replace("_", " "): getattr(info, name)
        for name in EntityInfo.__struct_fields__
        if name.endswith("_count")
    }
    counts["duplicates dropped"] = info.duplicates_dropped
    counts["recorded ids"] = info.remembered_ids
    groups: dict[str, Any] = {
        info.kind: info.name,
        "created (UTC)": moment(info.created_ms),
        "availability": info.availability,
        "size": bytes_text(info.size_bytes),
        "messages": counts,
        "settings": {
            name: _setting(name, value)
            for name, value in msgspec.structs.asdict(info.settings).items()
        },
    }
    if info.subscriptions:
        groups["subscriptions"] = info.subscriptions
    if info.kind == "subscription":
        groups["rules"] = {rule.name: rule_text(rule) for rule in info.rules}
    session.out.fields(entity_plain(info), groups)


def _setting(name: str, value: Any) -> Any:
    if value is not None and name.endswith(("_ms", "_ms_max")):
        return f"{value} ({age(value)})"
    return value


def rule_text(rule: Rule) -> str:
    """Return a rule on one line."""
    told = msgspec.to_builtins(rule_out(rule).filter)
    kind = told.pop("type")
    given = ", ".join(f"{key}={value!r}" for key, value in told.items() if value not in (None, {}))
    shown = told["expression"] if kind == "sql" else f"{kind} {given}".strip()
    return shown if rule.action is None else f"{shown} → {rule.action.expression}"


def _given(
    chosen: list[str] | None,
    duplicates: bool,
    sessions: bool,
    partitioned: bool,
    fifo: bool = False,
) -> dict[str, Any]:
    given = settings_of(chosen)
    flags = {
        "requires_duplicate_detection": duplicates,
        "requires_session": sessions,
        "enable_partitioning": partitioned,
        "fifo": fifo,
    }
    return given | {name: True for name, value in flags.items() if value}


@command(queue_app, "create")
def create_queue(
    session: CommandSession,
    name: Name,
    settings: Set = None,
    duplicates: Duplicates = False,
    sessions: Sessions = False,
    partitioned: Partitioned = False,
    fifo: Annotated[bool, typer.Option("--fifo", help="Create an SQS FIFO queue.")] = False,
) -> None:
    """Create a queue."""
    given = _given(settings, duplicates, sessions, partitioned, fifo)
    info = session.client.create_queue(name, **given)
    session.out.done(entity_plain(info), f"queue {info.name} created")


@command(queue_app, "list")
def list_queues(session: CommandSession) -> None:
    """List all queues with their message counts."""
    client = session.client
    infos = [client.queue(name) for name in client.queues()]
    session.out.rows(infos, COLUMNS, plain=entity_plain, empty="no queues")


@command(queue_app, "show")
def show_queue(session: CommandSession, name: Name) -> None:
    """Show a queue's settings and counts."""
    _show(session, session.client.queue(name))


@command(queue_app, "update")
def update_queue(session: CommandSession, name: Name, settings: Set = None) -> None:
    """Change a queue's settings."""
    info = session.client.change_queue(name, **_something(settings))
    session.out.done(entity_plain(info), f"queue {info.name} updated")


@command(queue_app, "delete")
def delete_queue(session: CommandSession, name: Name, yes: Yes = False) -> None:
    """Delete a queue and all its messages."""
    session.confirm(f"Delete queue {name} and all its messages?", yes)
    session.client.delete_queue(name)
    session.out.done({"deleted": name}, f"queue {name} deleted")


@command(topic_app, "create")
def create_topic(
    session: CommandSession,
    name: Name,
    settings: Set = None,
    duplicates: Duplicates = False,
    partitioned: Partitioned = False,
) -> None:
    """Create a topic."""
    given = _given(settings, duplicates, False, partitioned)
    info = session.client.create_topic(name, **given)
    session.out.done(entity_plain(info), f"topic {info.name} created")


@command(topic_app, "list")
def list_topics(session: CommandSession) -> None:
    """List all topics."""
    client = session.client
    infos = [client.topic(name) for name in client.topics()]
    columns: dict[str, Callable[[EntityInfo[Any]], Any]] = {
        "name": lambda one: one.name,
        "subscriptions": lambda one: len(one.subscriptions),
        "scheduled": lambda one: one.scheduled_count,
        "duplicates": lambda one: one.duplicates_dropped,
        "size": lambda one: bytes_text(one.size_bytes),
        "state": lambda one: one.availability,
    }
    session.out.rows(infos, columns, plain=entity_plain, empty="no topics")


@command(topic_app, "show")
def show_topic(session: CommandSession, name: Name) -> None:
    """Show a topic's settings, counts and subscriptions."""
    _show(session, session.client.topic(name))


@command(topic_app, "update")
def update_topic(session: CommandSession, name: Name, settings: Set = None) -> None:
    """Change a topic's settings."""
    info = session.client.change_topic(name, **_something(settings))
    session.out.done(entity_plain(info), f"topic {info.name} updated")


@command(topic_app, "delete")
def delete_topic(session: CommandSession, name: Name, yes: Yes = False) -> None:
    """Delete a topic, its subscriptions and all their messages."""
    session.confirm(f"Delete topic {name}, its subscriptions and all their messages?", yes)
    session.client.delete_topic(name)
    session.out.done({"deleted": name}, f"topic {name} deleted")


@command(subscription_app, "create")
def create_subscription(
    session: CommandSession,
    topic: Topic,
    name: Subscription,
    settings: Set = None,
    sessions: Sessions = False,
    sql: Annotated[
        str | None, typer.Option("--filter", help="Select messages by SQL. Default: all messages.")
    ] = None,
) -> None:
    """Create a subscription to a topic."""
    rules = None if sql is None else [Rule("$Default", SqlFilter(sql))]
    given = _given(settings, False, sessions, False)
    whole = session.client.create_subscription(topic, name, rules=rules, **given)
    info = session.client.subscription(whole)
    session.out.done(entity_plain(info), f"subscription {whole} created")


@command(subscription_app, "list")
def list_subscriptions(session: CommandSession, topic: Topic) -> None:
    """List a topic's subscriptions with their message counts."""
    client = session.client
    infos = [client.subscription(name) for name in client.topic(topic).subscriptions]
    session.out.rows(infos, COLUMNS, plain=entity_plain, empty="no subscriptions")


@command(subscription_app, "show")
def show_subscription(session: CommandSession, topic: Topic, name: Subscription) -> None:
    """Show a subscription's settings, counts and rules."""
    _show(session, session.client.subscription(subscription_name(topic, name)))


@command(subscription_app, "update")
def update_subscription(
    session: CommandSession, topic: Topic, name: Subscription, settings: Set = None
) -> None:
    """Change a subscription's settings."""
    whole = subscription_name(topic, name)
    info = session.client.change_subscription(whole, **_something(settings))
    session.out.done(entity_plain(info), f"subscription {info.name} updated")


@command(subscription_app, "delete")
def delete_subscription(
    session: CommandSession, topic: Topic, name: Subscription, yes: Yes = False
) -> None:
    """Delete a subscription and all its messages."""
    whole = subscription_name(topic, name)
    session.confirm(f"Delete subscription {whole} and all its messages?", yes)
    session.client.delete_subscription(whole)
    session.out.done({"deleted": whole}, f"subscription {whole} deleted")


def _something(settings: list[str] | None) -> dict[str, Any]:
    if not settings:
        raise typer.BadParameter("name the settings to change: --set NAME=VALUE")
    return settings_of(settings)
