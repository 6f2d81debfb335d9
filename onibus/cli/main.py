"""`onibus`: the registry of all commands."""

from __future__ import annotations

import typer

from onibus.cli.serve import serve

app = typer.Typer(
    name="onibus",
    help="A durable message bus that does not lose, does not repeat and does not reorder.",
    no_args_is_help=True,
    # What variables hold may be secret: it is never shown, not even when something fails.
    pretty_exceptions_show_locals=False,
)
app.command()(serve)


@app.callback()
def _group() -> None:
    """Make `onibus` a group of commands, also while there is only one."""


def main() -> None:
    """Run the command line."""
    app()
