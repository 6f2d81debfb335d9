"""Filter options, the same for every command that takes a filter (X5)."""

from __future__ import annotations

from typing import Annotated

import typer

from onibus.cli.values import moment_ms
from onibus.core.inspection import STATES, Filter

Entity = Annotated[
    str, typer.Argument(help="A queue, a topic, or topic/subscriptions/subscription.")
]
State = Annotated[
    str | None, typer.Option("--state", help=f"Only messages in this state: {', '.join(STATES)}.")
]
Sql = Annotated[str | None, typer.Option("--sql", help="Only messages that match this SQL filter.")]
Contains = Annotated[
    str | None, typer.Option("--contains", help="Only messages with this string in the body.")
]
InSession = Annotated[str | None, typer.Option("--session", help="Only messages in this session.")]
WithId = Annotated[str | None, typer.Option("--id", help="Only messages with this MessageId.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Enqueued at or after 2026-11-16T12:00Z, or within the last 10m."),
]
Before = Annotated[
    str | None, typer.Option("--before", help="Enqueued before this time, or over 10m ago.")
]
Numbers = Annotated[list[int] | None, typer.Argument(help="Sequence numbers.")]


def filter_of(
    state: str | None = None,
    sql: str | None = None,
    contains: str | None = None,
    session_id: str | None = None,
    message_id: str | None = None,
    since: str | None = None,
    before: str | None = None,
) -> Filter | None:
    """Return the filter that the options describe, or None without any."""
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"unknown state {state!r}: use one of {', '.join(STATES)}")
    where = Filter(
        state=state,
        sql=sql,
        body_contains=None if contains is None else contains.encode(),
        session_id=session_id,
        message_id=message_id,
        enqueued_from_ms=moment_ms(since),
        enqueued_before_ms=moment_ms(before),
    )
    return None if where == Filter() else where
