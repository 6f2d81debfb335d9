"""`onibus`: the registry of all commands."""

from __future__ import annotations

from typing import Annotated

import typer

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
from onibus.operation.version import own_version

app = typer.Typer(
    name="onibus",
    help="A durable message bus that does not lose, does not repeat and does not reorder.",
    no_args_is_help=True,
    # What variables hold may be secret: it is never shown, not even when something fails.
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
    """What comes before a command."""


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
