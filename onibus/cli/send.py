"""`onibus send`: one message, one per line of a file or standard input, or messages as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import typer
from msgspec.structs import replace
from rich.progress import Progress

from onibus.api.messages import MessageIn, message_of
from onibus.cli.filters import Entity
from onibus.cli.output import moment
from onibus.cli.session import CommandSession, command
from onibus.cli.values import future_ms, optional_ms, properties_of
from onibus.core.errors import InvalidArgument
from onibus.core.message import Message, Sent

#: Messages per request.
_BATCH = 500


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "send")(send)


def send(
    session: CommandSession,
    entity: Entity,
    body: Annotated[str | None, typer.Argument(help="Body of the message; or use --from.")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE", help="Send each line as a message; - for standard input."
        ),
    ] = None,
    messages_as_json: Annotated[
        bool,
        typer.Option("--json-lines", help="Read lines as JSON messages, as `peek --json` prints."),
    ] = False,
    message_id: Annotated[str | None, typer.Option("--id", help="MessageId.")] = None,
    make_id: Annotated[
        bool, typer.Option(help="Set a MessageId if it has none; not for FIFO by content.")
    ] = True,
    session_id: Annotated[str | None, typer.Option("--session", help="SessionId.")] = None,
    partition_key: Annotated[str | None, typer.Option("--key", help="PartitionKey.")] = None,
    subject: Annotated[str | None, typer.Option(help="Subject.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="CorrelationId.")] = None,
    content_type: Annotated[str | None, typer.Option(help="ContentType.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", metavar="NAME=VALUE")
    ] = None,
    ttl: Annotated[str | None, typer.Option(help="Time to live: 30s, 10m, 2h, 7d.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Enqueue at this time: 2026-11-16T12:00:00Z.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--in", help="Enqueue after this delay: 30s, 10m.")
    ] = None,
) -> None:
    """Send messages; exit 0 once they are durable."""
    if (body is None) == (source is None):
        raise typer.BadParameter("give the body of a message, or --from FILE")
    model = Message(
        message_id=message_id,
        session_id=session_id,
        partition_key=partition_key,
        subject=subject,
        correlation_id=correlation_id,
        content_type=content_type,
        properties=properties_of(properties),
        time_to_live_ms=optional_ms(ttl),
        scheduled_enqueue_time_ms=future_ms(at, after),
    )
    if body is not None:
        sent = session.client.send(entity, replace(model, body=body.encode()), make_id=make_id)
        session.out.done(_plain(sent), _sentence(sent, model.scheduled_enqueue_time_ms))
        return
    assert source is not None
    _send_many(session, entity, source, model, messages_as_json, make_id)


def _send_many(
    session: CommandSession, entity: str, source: str, model: Message, as_json: bool, make_id: bool
) -> None:
    accepted = duplicates = 0
    with _open(source) as lines, session.out.progress() as progress:
        bar = progress.add_task(f"sending to {entity}", total=_count(source))
        messages = _messages(lines, model, as_json)
        while batch := list(islice(messages, _BATCH)):
            sent = session.client.send_batch(entity, batch, make_id=make_id)
            dropped = sum(one.duplicate_of is not None for one in sent)
            accepted, duplicates = accepted + len(sent) - dropped, duplicates + dropped
            _advance(progress, bar, len(batch))
    told = {"accepted": accepted, "duplicates": duplicates}
    session.out.done(told, f"{accepted} sent, {duplicates} dropped as duplicates")


def _advance(progress: Progress, bar: Any, count: int) -> None:
    progress.update(bar, advance=count)


def _open(source: str) -> Any:
    if source == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {source}: {error.strerror}") from None


def _count(source: str) -> int | None:
    """Return the number of lines in a file, or None for a pipe."""
    if source == "-":
        return None
    with Path(source).open("rb") as file:
        return sum(1 for _ in file)


def _messages(lines: IO[bytes], model: Message, as_json: bool) -> Iterator[Message]:
    for number, line in enumerate(lines, start=1):
        content = line.rstrip(b"\r\n")
        if not as_json:
            yield replace(model, body=content)
        elif content:
            yield _from_json(content, number)


_decoder = msgspec.json.Decoder(dict[str, Any])


def _from_json(line: bytes, number: int) -> Message:
    """Read a message from JSON, without the fields that the broker set."""
    try:
        given = _decoder.decode(line)
        known = {name: value for name, value in given.items() if name in _FIELDS}
        return message_of(msgspec.convert(known, MessageIn))
    except (msgspec.DecodeError, InvalidArgument) as error:
        raise typer.BadParameter(f"line {number} is not a message: {error}") from None


_FIELDS = frozenset(MessageIn.__struct_fields__)


def _plain(sent: Sent) -> Any:
    return {"sequence_number": sent.sequence_number, "duplicate_of": sent.duplicate_of}


def _sentence(sent: Sent, due_ms: int | None) -> str:
    if sent.duplicate_of is not None:
        return f"dropped: duplicate of sequence number {sent.duplicate_of}"
    if due_ms is not None and due_ms > time.time() * 1000:
        return f"scheduled with sequence number {sent.sequence_number} for {moment(due_ms)} UTC"
    return f"sent with sequence number {sent.sequence_number}"
