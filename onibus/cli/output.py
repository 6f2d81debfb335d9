"""Output of commands: tables for people, JSON for programs.

With --json, standard output holds only the result: one document, or one per line for lists.
Progress and errors go to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from onibus.api.messages import message_out
from onibus.cli.printing import print_error, print_line
from onibus.cli.safe_console import SafeConsole
from onibus.core.message import ReceivedMessage
from onibus.operation.visible import visible, visible_json

#: Characters of a body that a table shows.
_BODY_SHOWN = 60
_FILE_COLUMNS = 240


class Output:
    """Output of a command, as tables or as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # Output to a file or a pipe is not cut to the width of a terminal.
        width = None if sys.stdout.isatty() else _FILE_COLUMNS
        self.console = SafeConsole(highlight=False, width=width)
        self.told = SafeConsole(stderr=True, highlight=False, soft_wrap=True)

    def document(self, value: Any) -> None:
        """Print a JSON document on one line."""
        print_line(_json(value))

    def error_document(self, value: Any) -> None:
        """Print a JSON document on standard error."""
        print_error(_json(value))

    def rows(
        self,
        items: Iterable[Any],
        columns: dict[str, Callable[[Any], Any]],
        *,
        plain: Callable[[Any], Any] = lambda item: item,
        empty: str = "none",
    ) -> None:
        """Show a list: one document per line, or a table."""
        if self.as_json:
            for item in items:
                self.document(plain(item))
            return
        table = Table(box=None, header_style="bold")
        for name in columns:
            table.add_column(name, overflow="fold")
        for item in items:
            table.add_row(*(text(show(item)) for show in columns.values()))
        if table.row_count:
            self.console.print(table)
        else:
            self.say(empty)

    def fields(self, value: Any, groups: dict[str, Any]) -> None:
        """Show one object: a document, or its fields in groups."""
        if self.as_json:
            self.document(value)
            return
        table = Table.grid(padding=(0, 2))
        for title, content in groups.items():
            if isinstance(content, dict):
                table.add_row(f"[bold]{title}[/bold]", "")
                for name, one in content.items():
                    table.add_row(f"  {text(name)}", text(one))
            else:
                table.add_row(f"[bold]{title}[/bold]", text(content))
        self.console.print(table)

    def messages(self, messages: Iterable[ReceivedMessage], *, empty: str = "no messages") -> None:
        """Show messages."""
        self.rows(messages, MESSAGE_COLUMNS, plain=message_out, empty=empty)

    def done(self, value: Any, sentence: str) -> None:
        """Report a result."""
        if self.as_json:
            self.document(value)
        else:
            self.console.print(sentence, markup=False)

    def say(self, sentence: str) -> None:
        """Print a sentence on standard error, unless the output is JSON."""
        if not self.as_json:
            self.told.print(sentence, markup=False)

    def progress(self) -> Progress:
        """Return a progress bar, which only terminals show."""
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self.told,
            disable=self.as_json or not sys.stderr.isatty(),
            transient=True,
        )


def _json(value: Any) -> str:
    return visible_json(msgspec.json.encode(value).decode())


def text(value: Any) -> str:
    """Return a value on one line for people, with markup escaped."""
    from rich.markup import escape

    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(text(one) for one in value) or "–"
    return escape(visible(str(value)))


def moment(ms: int | None) -> str | None:
    """Return a time in UTC."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def age(ms: float | None) -> str | None:
    """Return a rounded duration."""
    if ms is None:
        return None
    seconds = max(ms / 1000, 0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def bytes_text(count: int) -> str:
    """Return a rounded size."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def body_text(message: ReceivedMessage) -> str:
    """Return the beginning of a body, on one line."""
    try:
        shown = message.body.decode()
    except UnicodeDecodeError:
        shown = message.body[: _BODY_SHOWN // 2].hex(" ")
    line = "".join(one if one.isprintable() else "·" for one in shown[: _BODY_SHOWN + 1])
    return line if len(line) <= _BODY_SHOWN else line[: _BODY_SHOWN - 1] + "…"


MESSAGE_COLUMNS: dict[str, Callable[[ReceivedMessage], Any]] = {
    "sequence number": lambda one: one.sequence_number,
    "enqueued (UTC)": lambda one: moment(one.enqueued_time_ms),
    "state": lambda one: one.state,
    "deliveries": lambda one: one.delivery_count,
    "message id": lambda one: one.message_id,
    "session": lambda one: one.session_id,
    "body": body_text,
}
