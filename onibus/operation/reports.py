"""Pages about lakes that audits and reports hand to the server, and tickets that open them.

The server keeps the newest pages, in its data directory or, without one, in memory. A browser
cannot send a key when it follows a link. So a client with the right to read the page gets a ticket:
a path that opens this page once, within a minute.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from hashlib import blake2b
from pathlib import Path

from onibus.core.errors import Failed
from onibus.operation.private_files import write_private
from onibus.store.files import make_directory

#: Pages kept; a further one replaces the oldest.
PAGES_MAX = 200
TICKET_SECONDS = 60.0
#: Unused tickets; a further one replaces the oldest.
TICKETS_MAX = 1_000


class Reports:
    """Pages by the incarnation of an entity and the name of a reader."""

    def __init__(self, folder: Path | None = None) -> None:
        #: None: in memory
        self._folder = folder
        self._pages: dict[str, bytes] = {}
        #: by ticket: the page that it opens, and until when
        self._tickets: dict[str, tuple[str, float]] = {}

    async def keep(self, incarnation: int, reader: str, page: str) -> None:
        """Keep a page durably; it replaces the last one of this reader."""
        name, content = _name(incarnation, reader), page.encode()
        if self._folder is not None:
            try:
                await asyncio.to_thread(_write, self._folder, name, content)
            except OSError as error:
                raise Failed(f"cannot keep the report: {error.strerror}") from None
            return
        self._pages.pop(name, None)
        self._pages[name] = content
        while len(self._pages) > PAGES_MAX:
            del self._pages[next(iter(self._pages))]

    def ticket(self, incarnation: int, reader: str) -> str:
        """Return a ticket for a page."""
        while len(self._tickets) >= TICKETS_MAX:
            del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_urlsafe(24)
        self._tickets[ticket] = _name(incarnation, reader), time.monotonic() + TICKET_SECONDS
        return ticket

    async def open(self, ticket: str) -> bytes | None:
        """Return the page of a ticket, which is then used up; None without one."""
        name, until = self._tickets.pop(ticket, ("", 0.0))
        if until < time.monotonic():
            return None
        if self._folder is None:
            return self._pages.get(name)
        try:
            return await asyncio.to_thread((self._folder / name).read_bytes)
        except FileNotFoundError:
            return None


def _name(incarnation: int, reader: str) -> str:
    """Return the file name of a page; names of readers may have any characters."""
    return f"{incarnation}-{blake2b(reader.encode(), digest_size=16).hexdigest()}.html"


def _write(folder: Path, name: str, content: bytes) -> None:
    make_directory(folder, 0o700)
    write_private(folder / name, content)
    pages = sorted(folder.glob("*.html"), key=lambda page: page.stat().st_mtime_ns)
    for page in pages[:-PAGES_MAX]:
        page.unlink(missing_ok=True)
