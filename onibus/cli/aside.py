"""`onibus dead-letters`, `scheduled` and `deferred`: messages that receivers do not get yet."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

import typer

from onibus.api.messages import message_out
from onibus.cli.filters import (
    Before,
    Contains,
    Entity,
    InSession,
    Numbers,
    Since,
    Sql,
    WithId,
    filter_of,
)
from onibus.cli.looking import Limit, seen
from onibus.cli.output import MESSAGE_COLUMNS, moment
from onibus.cli.session import CommandSession, command
from onibus.core.inspection import Filter
from onibus.core.message import ReceivedMessage

dead_letters_app = typer.Typer(
    help="List or resubmit dead-lettered messages.", no_args_is_help=True
)
scheduled_app = typer.Typer(help="List or cancel scheduled messages.", no_args_is_help=True)
deferred_app = typer.Typer(help="List or reactivate deferred messages.", no_args_is_help=True)

_Columns = dict[str, Callable[[ReceivedMessage], Any]]


@command(dead_letters_app, "list")
def list_dead_letters(
    session: CommandSession,
    entity: Entity,
    limit: Limit = 50,
    sql: Sql = None,
    contains: Contains = None,
    in_session: InSession = None,
    message_id: WithId = None,
    since: Since = None,
    before: Before = None,
) -> None:
    """List dead-lettered messages and the reason for each."""
    where = filter_of(None, sql, contains, in_session, message_id, since, before)
    columns: _Columns = {
        "sequence number": MESSAGE_COLUMNS["sequence number"],
        "enqueued (UTC)": MESSAGE_COLUMNS["enqueued (UTC)"],
        "reason": lambda one: one.dead_letter_reason,
        "description": lambda one: one.dead_letter_description,
        "message id": MESSAGE_COLUMNS["message id"],
        "body": MESSAGE_COLUMNS["body"],
    }
    found = islice(seen(session, entity, where, dead_letters=True), limit)
    session.out.rows(found, columns, plain=message_out, empty="no dead-lettered messages")


@command(dead_letters_app, "resubmit")
def resubmit(
    session: CommandSession,
    entity: Entity,
    numbers: Numbers = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Resubmit all dead-lettered messages.")
    ] = False,
    sql: Sql = None,
    contains: Contains = None,
    in_session: InSession = None,
    message_id: WithId = None,
    since: Since = None,
    before: Before = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Send to this entity. Default: their own."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which messages match; send none.")
    ] = False,
) -> None:
    """Resubmit dead-lettered messages: by sequence number, by filter, or all."""
    where = filter_of(None, sql, contains, in_session, message_id, since, before)
    if sum((bool(numbers), everything, where is not None)) != 1:
        raise typer.BadParameter("choose the messages: sequence numbers, --all or a filter")
    if everything:
        where = Filter()
    with session.out.progress() as progress:
        progress.add_task(f"resubmitting from {entity}", total=None)
        done = session.client.resubmit(entity, numbers or None, where=where, to=to, dry_run=dry_run)
    rows: list[tuple[int, int | None, str | None]]
    rows = [(old, new, None) for old, new in done.moved.items()]
    rows += [(old, None, why) for old, why in done.refused.items()]
    columns: dict[str, Callable[[Any], Any]] = {
        "sequence number": lambda one: one[0],
        "new sequence number": lambda one: one[1],
        "outcome": lambda one: one[2] or ("would be resubmitted" if dry_run else "resubmitted"),
    }
    session.out.rows(
        rows,
        columns,
        plain=lambda one: {
            "sequence_number": one[0],
            "new_sequence_number": one[1],
            "refused": one[2],
            "dry_run": dry_run,
        },
        empty="no dead-lettered messages match",
    )


@command(scheduled_app, "list")
def list_scheduled(
    session: CommandSession, entity: Entity, limit: Limit = 50, message_id: WithId = None
) -> None:
    """List messages scheduled for a later time."""
    columns: _Columns = {
        "sequence number": MESSAGE_COLUMNS["sequence number"],
        "due (UTC)": lambda one: moment(one.message.scheduled_enqueue_time_ms),
        "message id": MESSAGE_COLUMNS["message id"],
        "body": MESSAGE_COLUMNS["body"],
    }
    found = seen(session, entity, Filter(state="scheduled", message_id=message_id))
    session.out.rows(
        islice(found, limit), columns, plain=message_out, empty="no scheduled messages"
    )


@command(scheduled_app, "cancel")
def cancel(session: CommandSession, entity: Entity, numbers: list[int]) -> None:
    """Cancel scheduled messages by sequence number; if one is not found, cancel none."""
    session.client.cancel_scheduled(entity, numbers)
    session.out.done({"cancelled": numbers}, f"{len(numbers)} cancelled")


@command(deferred_app, "list")
def list_deferred(
    session: CommandSession, entity: Entity, limit: Limit = 50, message_id: WithId = None
) -> None:
    """List deferred messages."""
    found = seen(session, entity, Filter(state="deferred", message_id=message_id))
    session.out.messages(islice(found, limit), empty="no deferred messages")


@command(deferred_app, "undefer")
def undefer(session: CommandSession, entity: Entity, numbers: list[int]) -> None:
    """Reactivate deferred messages by sequence number; if one is not found, reactivate none."""
    session.client.undefer(entity, numbers)
    session.out.done({"undeferred": numbers}, f"{len(numbers)} reactivated")
