"""Which messages are meant: the same flags wherever a filter is taken (X5)."""

from __future__ import annotations

from typing import Annotated

import typer

from onibus.cli.values import moment_ms
from onibus.core.inspection import Filter
from onibus.core.path.peek import STATES

Entity = Annotated[
    str, typer.Argument(help="A queue, a topic, or topic/subscriptions/subscription.")
]
State = Annotated[str | None, typer.Option("--state", help=f"One of {', '.join(STATES)}.")]
Sql = Annotated[str | None, typer.Option("--sql", help="Messages for which this SQL is true.")]
Contains = Annotated[str | None, typer.Option("--contains", help="Text in the body.")]
InSession = Annotated[str | None, typer.Option("--session", help="Messages of this session.")]
WithId = Annotated[str | None, typer.Option("--id", help="Messages with this MessageId.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Enqueued since: 2026-11-16T12:00Z, or 10m ago.")
]
Before = Annotated[str | None, typer.Option("--before", help="Enqueued before, likewise.")]
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
    """Return the filter that the flags mean; None where there are none."""
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"--state is one of {', '.join(STATES)}")
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
