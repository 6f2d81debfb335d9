"""`onibus peek`, `purge`, `sessions` and `duplicates`: inspect and delete messages."""

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
from onibus.cli.session import CommandSession, command
from onibus.core.inspection import Filter, SessionInfo
from onibus.core.message import ReceivedMessage

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]
DeadLetters = Annotated[bool, typer.Option("--dead-letters", help="Read the dead-letter queue.")]


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
    session: CommandSession,
    entity: Entity,
    limit: Limit = 50,
    start: Annotated[int, typer.Option(help="Start at this sequence number.")] = 0,
    dead_letters: DeadLetters = False,
    state: State = None,
    sql: Sql = None,
    contains: Contains = None,
    in_session: InSession = None,
    message_id: WithId = None,
    since: Since = None,
    before: Before = None,
) -> None:
    """Show messages without locking them."""
    where = filter_of(state, sql, contains, in_session, message_id, since, before)
    found = seen(session, entity, where, start=start, dead_letters=dead_letters)
    session.out.messages(islice(found, limit))


def seen(
    session: CommandSession,
    entity: str,
    where: Filter | None,
    *,
    start: int = 0,
    dead_letters: bool = False,
) -> Iterator[ReceivedMessage]:
    """Yield messages, requesting each page when it is needed."""
    while page := session.client.peek(
        entity, start=start, limit=200, dead_letters=dead_letters, where=where
    ):
        yield from page
        start = page[-1].sequence_number + 1


def purge(
    session: CommandSession,
    entity: Entity,
    state: State = None,
    sql: Sql = None,
    contains: Contains = None,
    in_session: InSession = None,
    message_id: WithId = None,
    since: Since = None,
    before: Before = None,
    forget_ids: Annotated[
        bool,
        typer.Option(
            "--forget-ids", help="Discard their recorded ids too: the same ids are accepted again."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
) -> None:
    """Delete all messages, or those that match a filter; locked messages stay."""
    where = filter_of(state, sql, contains, in_session, message_id, since, before)
    which = "all messages" if where is None else "the messages that match"
    session.confirm(f"Delete {which} in {entity}?", yes)
    with session.out.progress() as progress:
        progress.add_task(f"purging {entity}", total=None)
        count = session.client.purge(entity, where, forget_ids=forget_ids)
    session.out.done({"purged": count}, f"{count} deleted")


def sessions(session: CommandSession, entity: Entity) -> None:
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


def duplicates(session: CommandSession, entity: Entity) -> None:
    """List the latest messages dropped as duplicates, oldest first."""
    columns: dict[str, Callable[[Any], Any]] = {
        "message id": lambda one: one[0],
        "dropped (UTC)": lambda one: moment(one[1]),
        "duplicate of": lambda one: one[2],
    }
    session.out.rows(
        session.client.duplicates(entity),
        columns,
        plain=lambda one: {"message_id": one[0], "time_ms": one[1], "duplicate_of": one[2]},
        empty="no dropped duplicates",
    )
