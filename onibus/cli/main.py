"""Registry of all `onibus` commands, and the panels that its help shows them in."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from onibus.cli import (
    copies,
    health,
    looking,
    pipeline_lake,
    pipeline_rows,
    pipeline_write,
    receive,
    send,
    top,
)
from onibus.cli.aside import dead_letters_app, deferred_app, scheduled_app
from onibus.cli.clock import clock_app
from onibus.cli.entities import queue_app, subscription_app, topic_app
from onibus.cli.keys import keys_app
from onibus.cli.pipeline import pipeline_app
from onibus.cli.printing import print_line
from onibus.cli.producers import producers_app
from onibus.cli.readers import claims_app, readers_app
from onibus.cli.rules import rule_app
from onibus.cli.serve import serve
from onibus.cli.up import up
from onibus.client.finding import FILE, VARIABLE
from onibus.operation.version import own_version

#: Panels of the help, and their commands in order.
_PANELS = {
    "Server": ("serve", "up", "top", "clock", "backup", "restore", "check", "doctor"),
    "Entities": ("queue", "topic", "subscription", "rule", "keys"),
    "Messages": (
        *("send", "receive", "settle", "peek", "purge", "sessions", "duplicates"),
        *("dead-letters", "scheduled", "deferred", "readers", "claims", "producers"),
    ),
    "Spark": ("pipeline",),
}


class _Grouped(TyperGroup):
    """The commands, in the order of the panels."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands; those without a panel come last."""
        order = [name for names in _PANELS.values() for name in names]
        return sorted(self.commands, key=lambda name: order.index(name) if name in order else 99)


app = typer.Typer(
    name="onibus",
    cls=_Grouped,
    help=(
        "A durable message bus with Azure Service Bus and SQS semantics.\n\n"
        f"Commands connect to --connect, else to {VARIABLE}, {FILE} or localhost."
    ),
    no_args_is_help=True,
    # Tracebacks never show variables: they may hold secrets.
    pretty_exceptions_show_locals=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print_line(f"onibus {own_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Handle the options before a command."""


app.command()(serve)
app.command()(up)
app.add_typer(queue_app, name="queue")
app.add_typer(topic_app, name="topic")
app.add_typer(subscription_app, name="subscription")
app.add_typer(rule_app, name="rule")
for command in (send, receive, looking):
    command.register(app)
app.add_typer(dead_letters_app, name="dead-letters")
app.add_typer(scheduled_app, name="scheduled")
app.add_typer(deferred_app, name="deferred")
app.add_typer(readers_app, name="readers")
app.add_typer(claims_app, name="claims")
app.add_typer(keys_app, name="keys")
app.add_typer(clock_app, name="clock")
app.add_typer(producers_app, name="producers")
app.add_typer(pipeline_app, name="pipeline")
for jobs in (pipeline_lake, pipeline_rows, pipeline_write):
    jobs.register(pipeline_app)
for command in (top, copies, health):
    command.register(app)
for panel, names in _PANELS.items():
    for info in app.registered_commands:
        if (info.name or getattr(info.callback, "__name__", "")) in names:
            info.rich_help_panel = panel
    for group in app.registered_groups:
        if group.name in names:
            group.rich_help_panel = panel
