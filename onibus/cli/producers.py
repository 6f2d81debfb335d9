"""`onibus producers`: the named jobs that publish batches to an entity, and their progress."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from onibus.cli.entities import Yes
from onibus.cli.session import CommandSession, command
from onibus.core.errors import InvalidArgument

producers_app = typer.Typer(
    help="List producers that publish batches, or reset their progress.", no_args_is_help=True
)

Entity = Annotated[str, typer.Argument(help="Name of the queue or topic.")]


@command(producers_app, "list")
def list_producers(session: CommandSession, entity: Entity) -> None:
    """List the producers that published batches to an entity."""
    session.out.rows(
        session.client.producers(entity),
        {
            "producer": lambda one: one.producer,
            "last batch": lambda one: one.batch,
            "checkpoint": lambda one: one.checkpoint,
        },
        plain=msgspec.to_builtins,
        empty="no producers",
    )


@command(producers_app, "forget")
def forget_producer(
    session: CommandSession,
    entity: Entity,
    producer: Annotated[str, typer.Argument(help="Name of the producer.")],
    yes: Yes = False,
) -> None:
    """Reset a producer's progress: it starts over, and batches it sends again are stored again."""
    session.confirm(f"Reset {producer}? Batches that it publishes again are stored twice.", yes)
    if not session.client.forget_producer(entity, producer):
        raise InvalidArgument(f"{entity} has no producer {producer!r}: see onibus producers list")
    session.out.done({"forgotten": producer}, f"{producer} reset")
