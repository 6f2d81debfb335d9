"""`onibus peek`, `purge`, `sessions` and `duplicates`: looking at messages, and tidying up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer

from onibus.cli.filters import (
    Before,
    Contains,
    Entity,
    InSession,
    Since,
    Sql,
    State,
    WithId,
    filter_of,
)
from onibus.cli.output import age, moment
from onibus.cli.session import Session, command
from onibus.core.inspection import Filter, SessionInfo
from onibus.core.message import ReceivedMessage

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]
DeadLetters = Annotated[bool, typer.Option("--dead-letters", help="In the dead-letter queue.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for name, work in (
        ("peek", peek),
        ("purge", purge),
        ("sessions", sessions),
        ("duplicates", duplicates),
    ):
        command(app, name)(work)


def peek(
    session: Session,
    entity: Entity,
    limit: Limit = 50,
    start: Annotated[int, typer.Option(help="From this sequence number on.")] = 0,
    dead_letters: DeadLetters = False,
    state: State = None,
    sql: Sql = None,
    contains: Contains = None,
    in_session: InSession = None,
    message_id: WithId = None,
    since: Since = None,
    before: Before = None,
) -> None:
    """Look at messages without touching them."""
    where = filter_of(state, sql, contains, in_session, message_id, since, before)
    found = seen(session, entity, where, start=start, dead_letters=dead_letters)
    session.out.messages(islice(found, limit))


def seen(
    session: Session,
    entity: str,
    where: Filter | None,
    *,
    start: int = 0,
    dead_letters: bool = False,
) -> Iterator[ReceivedMessage]:
    """Yield messages page by page, as they are wanted."""
    while page := session.client.peek(
        entity, start=start, limit=200, dead_letters=dead_letters, where=where
    ):
        yield from page
        start = page[-1].sequence_number + 1


def purge(
    session: Session,
    entity: Entity,
    state: State = None,
    sql: Sql = None,
    contains: Contains = None,
    in_session: InSession = None,
    message_id: WithId = None,
    since: Since = None,
    before: Before = None,
    forget_ids: Annotated[
        bool, typer.Option("--forget-ids", help="Let their duplicates in again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete messages that nobody holds: all of them, or those that are meant."""
    where = filter_of(state, sql, contains, in_session, message_id, since, before)
    which = "everything" if where is None else "what these flags mean"
    session.confirm(f"Delete {which} in {entity}?", yes)
    with session.out.progress() as progress:
        progress.add_task(f"purging {entity}", total=None)
        count = session.client.purge(entity, where, forget_ids=forget_ids)
    session.out.done({"purged": count}, f"{count} deleted")


def sessions(session: Session, entity: Entity) -> None:
    """List sessions with counts, oldest age, lock holder and state."""
    now = time.time() * 1000
    columns: dict[str, Callable[[SessionInfo], Any]] = {
        "session": lambda one: one.session_id,
        "ready": lambda one: one.ready_count,
        "held": lambda one: one.held_count,
        "oldest": lambda one: _age(one.oldest_enqueued_time_ms, now),
        "locked until (UTC)": lambda one: moment(one.locked_until_ms),
        "holder": lambda one: one.lock_holder,
        "state": lambda one: None if one.state is None else f"{len(one.state)} B",
    }
    session.out.rows(
        session.client.sessions(entity),
        columns,
        plain=msgspec.to_builtins,
        empty="no sessions",
    )


def _age(stamp: int | None, now: float) -> str | None:
    return None if stamp is None else age(now - stamp)


def duplicates(session: Session, entity: Entity) -> None:
    """List the last messages that were dropped as duplicates, the oldest first."""
    columns: dict[str, Callable[[Any], Any]] = {
        "message id": lambda one: one[0],
        "dropped (UTC)": lambda one: moment(one[1]),
        "repeats number": lambda one: one[2],
    }
    session.out.rows(
        session.client.duplicates(entity),
        columns,
        plain=lambda one: {"message_id": one[0], "time_ms": one[1], "duplicate_of": one[2]},
        empty="no duplicates were dropped",
    )
