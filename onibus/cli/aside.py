"""`onibus dead-letters`, `scheduled` and `deferred`: messages that are set aside."""

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
from onibus.cli.session import Session, command
from onibus.core.inspection import Filter
from onibus.core.message import ReceivedMessage

dead_letters_app = typer.Typer(
    help="Dead letters: list them, send them again.", no_args_is_help=True
)
scheduled_app = typer.Typer(
    help="Messages for later: list them, cancel them.", no_args_is_help=True
)
deferred_app = typer.Typer(
    help="Deferred messages: list them, give them back.", no_args_is_help=True
)

_Columns = dict[str, Callable[[ReceivedMessage], Any]]


@command(dead_letters_app, "list")
def list_dead_letters(
    session: Session,
    entity: Entity,
    limit: Limit = 50,
    sql: Sql = None,
    contains: Contains = None,
    in_session: InSession = None,
    message_id: WithId = None,
    since: Since = None,
    before: Before = None,
) -> None:
    """List dead letters and why they are dead."""
    where = filter_of(None, sql, contains, in_session, message_id, since, before)
    columns: _Columns = {
        "number": MESSAGE_COLUMNS["number"],
        "enqueued (UTC)": MESSAGE_COLUMNS["enqueued (UTC)"],
        "reason": lambda one: one.dead_letter_reason,
        "description": lambda one: one.dead_letter_description,
        "message id": MESSAGE_COLUMNS["message id"],
        "body": MESSAGE_COLUMNS["body"],
    }
    found = islice(seen(session, entity, where, dead_letters=True), limit)
    session.out.rows(found, columns, plain=message_out, empty="no dead letters")


@command(dead_letters_app, "resubmit")
def resubmit(
    session: Session,
    entity: Entity,
    numbers: Numbers = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    sql: Sql = None,
    contains: Contains = None,
    in_session: InSession = None,
    message_id: WithId = None,
    since: Since = None,
    before: Before = None,
    to: Annotated[str | None, typer.Option("--to", help="To another entity.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be.")] = False,
) -> None:
    """Send dead letters again: some by their numbers, those that are meant, or all."""
    where = filter_of(None, sql, contains, in_session, message_id, since, before)
    if sum((bool(numbers), everything, where is not None)) != 1:
        raise typer.BadParameter("say which: sequence numbers, --all, or what they have in common")
    if everything:
        where = Filter()
    with session.out.progress() as progress:
        progress.add_task(f"resubmitting from {entity}", total=None)
        done = session.client.resubmit(entity, numbers or None, where=where, to=to, dry_run=dry_run)
    rows: list[tuple[int, int | None, str | None]]
    rows = [(old, new, None) for old, new in done.moved.items()]
    rows += [(old, None, why) for old, why in done.refused.items()]
    columns: dict[str, Callable[[Any], Any]] = {
        "number": lambda one: one[0],
        "new number": lambda one: one[1],
        "what": lambda one: one[2] or ("would be sent again" if dry_run else "sent again"),
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
        empty="no dead letters are meant",
    )


@command(scheduled_app, "list")
def list_scheduled(
    session: Session, entity: Entity, limit: Limit = 50, message_id: WithId = None
) -> None:
    """List messages that wait for their time."""
    columns: _Columns = {
        "number": MESSAGE_COLUMNS["number"],
        "due (UTC)": lambda one: moment(one.message.scheduled_enqueue_time_ms),
        "message id": MESSAGE_COLUMNS["message id"],
        "body": MESSAGE_COLUMNS["body"],
    }
    found = seen(session, entity, Filter(state="scheduled", message_id=message_id))
    session.out.rows(islice(found, limit), columns, plain=message_out, empty="nothing is scheduled")


@command(scheduled_app, "cancel")
def cancel(session: Session, entity: Entity, numbers: list[int]) -> None:
    """Delete scheduled messages by their numbers: all of them, or none."""
    session.client.cancel_scheduled(entity, numbers)
    session.out.done({"cancelled": numbers}, f"{len(numbers)} cancelled")


@command(deferred_app, "list")
def list_deferred(
    session: Session, entity: Entity, limit: Limit = 50, message_id: WithId = None
) -> None:
    """List deferred messages."""
    found = seen(session, entity, Filter(state="deferred", message_id=message_id))
    session.out.messages(islice(found, limit), empty="nothing is deferred")


@command(deferred_app, "undefer")
def undefer(session: Session, entity: Entity, numbers: list[int]) -> None:
    """Give deferred messages back to the active ones: all of them, or none."""
    session.client.undefer(entity, numbers)
    session.out.done({"undeferred": numbers}, f"{len(numbers)} given back")
