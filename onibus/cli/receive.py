"""`onibus receive` and `onibus settle`: receive and settle messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from onibus.api.messages import message_out
from onibus.cli.filters import Entity
from onibus.cli.output import MESSAGE_COLUMNS
from onibus.cli.session import CommandSession, command
from onibus.cli.values import duration_ms
from onibus.core.message import ReceivedMessage

if TYPE_CHECKING:
    from onibus.client.blocking.receiving import Receiver, Settler
    from onibus.client.blocking.sessions import SessionReceiver

COMPLETE, ABANDON, DEFER, DEAD_LETTER = "complete", "abandon", "defer", "dead-letter"
LEAVE, RENEW = "leave", "renew"
_SETTLEMENTS = (COMPLETE, ABANDON, DEFER, DEAD_LETTER)
#: Results of --then, as the command prints them.
_DONE = {
    COMPLETE: "completed",
    ABANDON: "abandoned",
    DEFER: "deferred: receive them with --deferred SEQUENCE_NUMBER",
    DEAD_LETTER: "dead-lettered: list them with `onibus dead-letters list`",
    LEAVE: "left locked: settle them with `onibus settle` and their lock tokens",
}

_Delay = Annotated[
    str, typer.Option(help="With abandon and defer: make them available again after 30s, 10m.")
]
_Reason = Annotated[str | None, typer.Option(help="With dead-letter: reason.")]
_Description = Annotated[
    str | None, typer.Option(help="With dead-letter: description of the error.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "receive")(receive)
    command(app, "settle")(settle)


def receive(
    session: CommandSession,
    entity: Entity,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Receive at most this many.")
    ] = 1,
    wait: Annotated[str, typer.Option(help="Time to wait for the first message: 30s.")] = "0",
    then: Annotated[
        str,
        typer.Option(help=f"Settle them: {', '.join(_SETTLEMENTS)}, or {LEAVE} them locked."),
    ] = COMPLETE,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Receive from the dead-letter queue.")
    ] = False,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Receive and delete: lost if the connection drops."),
    ] = False,
    deferred: Annotated[
        list[int] | None,
        typer.Option(
            "--deferred",
            metavar="SEQUENCE_NUMBER",
            help="Receive this deferred message. Repeatable.",
        ),
    ] = None,
    session_id: Annotated[
        str | None,
        typer.Option("--session", help="Receive from this session; '' for the next one."),
    ] = None,
    delay: _Delay = "0",
    reason: _Reason = None,
    description: _Description = None,
) -> None:
    """Receive messages and complete them."""
    if then not in (*_SETTLEMENTS, LEAVE):
        raise typer.BadParameter(
            f"unknown --then {then!r}: use one of {', '.join(_SETTLEMENTS)}, {LEAVE}"
        )
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
        # Show first, then settle: a failure may show a message twice, but never loses one unseen.
        _show(session, messages, left=then == LEAVE and not delete)
        if not messages:
            return
        if then == COMPLETE and not delete:
            source.complete(messages)
        elif then != LEAVE and not delete:
            for message in messages:
                _settle_one(source, then, message, duration_ms(delay), reason, description)
    session.out.say(f"{len(messages)} {'deleted' if delete else _DONE[then]}")


def _show(session: CommandSession, messages: list[ReceivedMessage], left: bool) -> None:
    # Every received message is locked, so the state says nothing.
    columns = {name: show for name, show in MESSAGE_COLUMNS.items() if name != "state"}
    if left:
        columns["token"] = lambda one: None if one.token is None else one.token.hex()
    session.out.rows(messages, columns, plain=message_out, empty="no messages")


def settle(
    session: CommandSession,
    entity: Entity,
    verb: Annotated[
        str, typer.Argument(help=f"Settlement: {', '.join(_SETTLEMENTS)}, or {RENEW} the lock.")
    ],
    tokens: Annotated[
        list[str], typer.Argument(help="Lock tokens, as `receive --then leave` prints them.")
    ],
    delay: _Delay = "0",
    reason: _Reason = None,
    description: _Description = None,
) -> None:
    """Settle messages that are still locked."""
    if verb not in (*_SETTLEMENTS, RENEW):
        raise typer.BadParameter(
            f"unknown settlement {verb!r}: use one of {', '.join(_SETTLEMENTS)}, {RENEW}"
        )
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
        raise typer.BadParameter(
            f"{text!r} is not a lock token: copy it from receive --then leave"
        ) from None


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
