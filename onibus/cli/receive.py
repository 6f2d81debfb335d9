"""`onibus receive` and `onibus settle`: taking messages, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from onibus.api.messages import message_out
from onibus.cli.filters import Entity
from onibus.cli.output import MESSAGE_COLUMNS
from onibus.cli.session import Session, command
from onibus.cli.values import duration_ms
from onibus.core.message import ReceivedMessage

if TYPE_CHECKING:
    from onibus.client.blocking.receiving import Receiver, Settler
    from onibus.client.blocking.sessions import SessionReceiver

COMPLETE, ABANDON, DEFER, DEAD_LETTER = "complete", "abandon", "defer", "dead-letter"
LEAVE, RENEW = "leave", "renew"
_SETTLEMENTS = (COMPLETE, ABANDON, DEFER, DEAD_LETTER)
#: What has become of messages, as people are told.
_DONE = {
    COMPLETE: "completed",
    ABANDON: "abandoned",
    DEFER: "deferred: receive them by number, --deferred NUMBER",
    DEAD_LETTER: "dead-lettered: `onibus dead-letters` has them",
    LEAVE: "left locked: settle them by their tokens, `onibus settle`",
}

_Delay = Annotated[str, typer.Option(help="Of abandon and defer: comes back after 30s, 10m.")]
_Reason = Annotated[str | None, typer.Option(help="Of dead-letter: why.")]
_Description = Annotated[str | None, typer.Option(help="Of dead-letter: why, in detail.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "receive")(receive)
    command(app, "settle")(settle)


def receive(
    session: Session,
    entity: Entity,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 1,
    wait: Annotated[str, typer.Option(help="How long to wait for the first: 30s.")] = "0",
    then: Annotated[
        str,
        typer.Option(help=f"What becomes of them: {', '.join(_SETTLEMENTS)}, or {LEAVE} (locked)."),
    ] = COMPLETE,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Dead ones.")] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Gone when received; lost if we are cut off.")
    ] = False,
    deferred: Annotated[
        list[int] | None, typer.Option("--deferred", metavar="NUMBER", help="Deferred ones.")
    ] = None,
    session_id: Annotated[
        str | None, typer.Option("--session", help="From this session; '' for the next free one.")
    ] = None,
    delay: _Delay = "0",
    reason: _Reason = None,
    description: _Description = None,
) -> None:
    """Receive messages, show them, then complete them unless told otherwise."""
    if then not in (*_SETTLEMENTS, LEAVE):
        raise typer.BadParameter(f"--then is one of {', '.join(_SETTLEMENTS)}, {LEAVE}")
    wait_ms = duration_ms(wait)
    source: Receiver | SessionReceiver
    if session_id is None:
        source = session.client.receiver(entity, dead_letters=dead_letters, delete=delete)
    else:
        source = session.client.accept_session(entity, session_id or None, wait_ms=wait_ms)
    with source:
        if deferred:
            messages = source.receive_deferred(deferred)
        else:
            messages = source.receive(limit, wait_ms=wait_ms)
        # What is shown first and settled then may be shown twice, and is never lost unseen.
        _show(session, messages, left=then == LEAVE and not delete)
        if not messages:
            return
        if then == COMPLETE and not delete:
            source.complete(messages)
        elif then != LEAVE and not delete:
            for message in messages:
                _settle_one(source, then, message, duration_ms(delay), reason, description)
    session.out.say(f"{len(messages)} {'deleted' if delete else _DONE[then]}")


def _show(session: Session, messages: list[ReceivedMessage], left: bool) -> None:
    # All of them are locked when they come: that tells nobody anything.
    columns = {name: show for name, show in MESSAGE_COLUMNS.items() if name != "state"}
    if left:
        columns["token"] = lambda one: None if one.token is None else one.token.hex()
    session.out.rows(messages, columns, plain=message_out, empty="no messages")


def settle(
    session: Session,
    entity: Entity,
    verb: Annotated[str, typer.Argument(help=f"{', '.join(_SETTLEMENTS)} or {RENEW}.")],
    tokens: Annotated[list[str], typer.Argument(help="Tokens, as `receive --then leave` shows.")],
    delay: _Delay = "0",
    reason: _Reason = None,
    description: _Description = None,
) -> None:
    """Settle messages that were left locked."""
    if verb not in (*_SETTLEMENTS, RENEW):
        raise typer.BadParameter(f"a verb is one of {', '.join(_SETTLEMENTS)}, {RENEW}")
    held = [_token(one) for one in tokens]
    with session.client.receiver(entity, renew_ms=0) as receiver:
        if verb == COMPLETE:
            receiver.complete(held)
        elif verb == RENEW:
            for token in held:
                receiver.renew(token)
        else:
            for token in held:
                _settle_one(receiver, verb, token, duration_ms(delay), reason, description)
    session.out.done({"settled": len(held), "verb": verb}, f"{verb}: {len(held)}")


def _token(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no token") from None


def _settle_one(
    source: Settler,
    verb: str,
    message: Any,
    delay_ms: int,
    reason: str | None,
    description: str | None,
) -> None:
    if verb == DEAD_LETTER:
        source.dead_letter(message, reason=reason, description=description)
    elif verb == ABANDON:
        source.abandon(message, delay_ms=delay_ms)
    else:
        source.defer(message, delay_ms=delay_ms)
