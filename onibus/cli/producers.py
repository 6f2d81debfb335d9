"""`onibus producers`: who has published batches to an entity, and how far each has come."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from onibus.cli.entities import Yes
from onibus.cli.session import Session, command
from onibus.core.errors import InvalidArgument

producers_app = typer.Typer(
    help="Jobs that publish batches: list, and forget how far they are.", no_args_is_help=True
)

Entity = Annotated[str, typer.Argument(help="A queue or a topic.")]


@command(producers_app, "list")
def list_producers(session: Session, entity: Entity) -> None:
    """List who has published batches to an entity."""
    session.out.rows(
        session.client.producers(entity),
        {
            "producer": lambda one: one.producer,
            "last batch": lambda one: one.batch,
            "checkpoint": lambda one: one.checkpoint,
        },
        plain=msgspec.to_builtins,
        empty="nobody has published batches",
    )


@command(producers_app, "forget")
def forget_producer(
    session: Session,
    entity: Entity,
    producer: Annotated[str, typer.Argument(help="Its name.")],
    yes: Yes = False,
) -> None:
    """Forget how far a producer has come: then it begins anew, and what it sends comes again."""
    session.confirm(f"Forget {producer}? Batches that it publishes again come twice.", yes)
    if not session.client.forget_producer(entity, producer):
        raise InvalidArgument(f"{entity} knows no producer {producer!r}")
    session.out.done({"forgotten": producer}, f"{producer} is forgotten")
