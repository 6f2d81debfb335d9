"""`onibus readers` and `claims`: who reads an entity's log, and who has taken messages from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from onibus.cli.filters import Entity
from onibus.cli.output import moment
from onibus.cli.session import Session, command
from onibus.core.errors import ClaimNotFound

readers_app = typer.Typer(
    help="Named readers of a log: list them, remove them.", no_args_is_help=True
)
claims_app = typer.Typer(
    help="Claims of messages: list them, give them back.", no_args_is_help=True
)

_Columns = dict[str, Callable[[Any], Any]]
Reader = Annotated[str, typer.Option("--reader", help="The reader's name.")]


@command(readers_app, "list")
def list_readers(session: Session, entity: Entity) -> None:
    """List named readers, how far they have come and how far they are behind."""
    columns: _Columns = {
        "reader": lambda one: one.name,
        "log": lambda one: one.log,
        "behind": lambda one: sum(lag or 0 for lag in one.lag),
        "next numbers": lambda one: ", ".join(map(str, one.positions)),
        "moved (UTC)": lambda one: moment(one.moved_ms),
        "lost": lambda one: ", ".join(f"{lost[0]}–{lost[1]}" for lost in one.lost if lost) or None,
        "for": lambda one: one.address,
    }
    session.out.rows(session.client.readers(entity), columns, plain=asdict, empty="no readers")


@command(readers_app, "remove")
def remove(session: Session, entity: Entity, reader: Reader) -> None:
    """Remove a named reader: what was kept for it alone may go."""
    session.client.delete_reader(entity, reader)
    session.out.done({"removed": reader}, f"reader {reader} is removed")


@command(claims_app, "list")
def list_claims(session: Session, entity: Entity) -> None:
    """List claims that are neither committed nor given back."""
    columns: _Columns = {
        "reader": lambda one: one.reader,
        "number": lambda one: one.number,
        "messages": lambda one: one.count,
        "made (UTC)": lambda one: moment(one.created_ms),
        "read": lambda one: "yes" if one.read else "no",
        "given back (UTC)": lambda one: moment(one.lease_until_ms),
    }
    session.out.rows(session.client.claims(entity), columns, plain=asdict, empty="no claims")


@command(claims_app, "release")
def release(
    session: Session,
    entity: Entity,
    numbers: Annotated[list[int] | None, typer.Argument(help="All, if none is named.")] = None,
    *,
    reader: Reader,
) -> None:
    """Give claims of a reader back, without counting a delivery; all of them, or some."""
    held = [one.number for one in session.client.claims(entity) if one.reader == reader]
    unknown = set(numbers or ()) - set(held)
    if unknown:
        raise ClaimNotFound(f"reader {reader!r} has no claim {min(unknown)} on {entity}")
    chosen = numbers or held
    for number in chosen:
        session.client.release_claim(entity, reader, number)
    session.out.done({"released": chosen}, f"{len(chosen)} given back")
