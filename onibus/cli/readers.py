"""`onibus readers` and `claims`: the readers of an entity's log, and the messages they claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from onibus.cli.filters import Entity
from onibus.cli.output import moment
from onibus.cli.session import CommandSession, command
from onibus.core.errors import ClaimNotFound

readers_app = typer.Typer(help="List or remove named readers of a log.", no_args_is_help=True)
claims_app = typer.Typer(help="List or release claims of messages.", no_args_is_help=True)

_Columns = dict[str, Callable[[Any], Any]]
Reader = Annotated[str, typer.Option("--reader", help="Name of the reader.")]


@command(readers_app, "list")
def list_readers(session: CommandSession, entity: Entity) -> None:
    """List named readers, their positions and their backlog."""
    columns: _Columns = {
        "reader": lambda one: one.name,
        "log": lambda one: one.log,
        "behind": lambda one: sum(lag or 0 for lag in one.lag),
        "next sequence numbers": lambda one: ", ".join(map(str, one.positions)),
        "moved (UTC)": lambda one: moment(one.moved_ms),
        "lost": lambda one: ", ".join(f"{lost[0]}–{lost[1]}" for lost in one.lost if lost) or None,
        "for": lambda one: one.address,
    }
    session.out.rows(session.client.readers(entity), columns, plain=asdict, empty="no readers")


@command(readers_app, "remove")
def remove(session: CommandSession, entity: Entity, reader: Reader) -> None:
    """Remove a named reader; messages retained only for it can then be deleted."""
    session.client.delete_reader(entity, reader)
    session.out.done({"removed": reader}, f"reader {reader} removed")


@command(claims_app, "list")
def list_claims(session: CommandSession, entity: Entity) -> None:
    """List claims that are neither committed nor released."""
    columns: _Columns = {
        "reader": lambda one: one.reader,
        "number": lambda one: one.number,
        "messages": lambda one: one.count,
        "created (UTC)": lambda one: moment(one.created_ms),
        "read": lambda one: "yes" if one.read else "no",
        "lease until (UTC)": lambda one: moment(one.lease_until_ms),
    }
    session.out.rows(session.client.claims(entity), columns, plain=asdict, empty="no claims")


@command(claims_app, "release")
def release(
    session: CommandSession,
    entity: Entity,
    numbers: Annotated[
        list[int] | None, typer.Argument(help="Claim numbers. Default: all claims of the reader.")
    ] = None,
    *,
    reader: Reader,
) -> None:
    """Release claims of a reader without counting a delivery."""
    held = [one.number for one in session.client.claims(entity) if one.reader == reader]
    unknown = set(numbers or ()) - set(held)
    if unknown:
        raise ClaimNotFound(f"reader {reader!r} has no claim {min(unknown)} on {entity}")
    chosen = numbers or held
    for number in chosen:
        session.client.release_claim(entity, reader, number)
    session.out.done({"released": chosen}, f"{len(chosen)} released")
