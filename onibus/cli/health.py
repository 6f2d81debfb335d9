"""`onibus check` and `onibus doctor`: verify a data directory; diagnose a machine."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from onibus.cli import exits
from onibus.cli.copies import ConfigFile, Stores, places_of, refuse_unknown
from onibus.cli.output import bytes_text
from onibus.cli.session import CommandSession, command


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "check", asks_server=False)(check)
    command(app, "doctor", asks_server=False)(doctor)


def check(
    session: CommandSession,
    directory: Annotated[
        Path | None,
        typer.Argument(help="Data directory that no server has open. Default: data."),
    ] = None,
    config: ConfigFile = None,
    stores: Stores = None,
) -> None:
    """Verify a data directory that no server uses, changing nothing; exit 1 if it is damaged."""
    from onibus.server.check import check as look

    data, places, _ = places_of(directory, config, stores)
    refuse_unknown(data, stores)
    with session.out.progress() as progress:
        bar = progress.add_task("checking", total=None)
        report = look(
            data,
            places=places,
            progress=lambda what: progress.update(bar, description=f"checking {what}"),
        )
    if session.out.as_json:
        session.out.document(msgspec.to_builtins(report) | {"sound": report.sound})
    else:
        if report.findings:
            names = ("severity", "where", "what", "advice")
            columns: dict[str, Callable[[Any], Any]] = {one: attrgetter(one) for one in names}
            session.out.rows(report.findings, columns)
        verdict = "sound" if report.sound else "NOT sound"
        session.out.console.print(
            f"{verdict}: {report.stores} stores, {report.entities} entities, "
            f"{report.messages} messages, {bytes_text(report.bytes)}"
        )
    if not report.sound:
        raise typer.Exit(exits.REFUSED)


def doctor(
    session: CommandSession,
    directory: Annotated[
        Path | None, typer.Option("--data", help="Data directory to inspect. Default: none.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address for the server to listen on.")] = ("127.0.0.1"),
    ports: Annotated[
        list[int] | None,
        typer.Option("--port", help="Port for the server to listen on. Repeatable."),
    ] = None,
) -> None:
    """Diagnose this machine and its configuration; exit 1 if something is wrong."""
    from onibus.server.doctor import BAD
    from onibus.server.doctor import doctor as examine

    found = examine(directory, host=host, ports=ports or ())
    columns: dict[str, Callable[[Any], Any]] = {
        "": lambda one: one.state,
        "what": lambda one: one.name,
        "found": lambda one: one.found,
        "advice": lambda one: one.advice or None,
    }
    session.out.rows(found, columns, plain=msgspec.to_builtins)
    if any(one.state == BAD for one in found):
        raise typer.Exit(exits.REFUSED)
