"""Atom documents: an entry with a description, and a feed of entries with its next page."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from onibus.core.limits import LAST_MOMENT_MS
from onibus.protocols.atom.xml import ATOM, INSTANCE, SERVICE_BUS, escaped, tag
from onibus.protocols.http.messages import Response

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The words of the service, by which people know that they reached one.
_PUBLIC = "This is the list of publicly-listed services currently available."

ENTRY = "application/atom+xml;type=entry;charset=utf-8"
FEED = "application/atom+xml;type=feed;charset=utf-8"


def moment(ms: int) -> str:
    """Return a time as it is written."""
    found = _EPOCH + timedelta(milliseconds=min(ms, LAST_MOMENT_MS))
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def entry(address: str, title: str, created: str, kind: str, inner: str) -> str:
    """Return an entry with an address that describes a thing of that kind."""
    description = tag(kind, inner, f'xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}"')
    return tag(
        "entry",
        tag("id", escaped(address))
        + tag("title", escaped(title), 'type="text"')
        + tag("published", created)
        + tag("updated", created)
        + tag("author", tag("name", "onibus"))
        + tag("link", "", f'rel="self" href="{escaped(address)}"')
        + tag("content", description, 'type="application/xml"'),
        f'xmlns="{ATOM}"',
    )


def feed(address: str, title: str, now: str, following: str, entries: Iterable[str]) -> str:
    """Return a page of entries; `following` is where the next page is, empty on the last one."""
    # Clients know the next page by being the second link.
    links = tag("link", "", f'rel="self" href="{escaped(address)}"')
    if following:
        links += tag("link", "", f'rel="next" href="{escaped(following)}"')
    return tag(
        "feed",
        tag("title", escaped(title), 'type="text"')
        + tag("id", escaped(address))
        + tag("updated", now)
        + links
        + "".join(entries),
        f'xmlns="{ATOM}"',
    )


def public_feed(now: str) -> str:
    """Return the feed at the root of a namespace, which needs no right and lists nothing."""
    return tag(
        "feed",
        tag("title", "Publicly Listed Services", 'type="text"')
        + tag("subtitle", _PUBLIC, 'type="text"')
        + tag("id", f"uuid:{uuid4()};id=1")
        + tag("updated", now)
        + tag("generator", "Service Bus 1.1"),
        f'xmlns="{ATOM}"',
    )


def answer(document: str, kind: str = ENTRY, status: int = 200) -> Response:
    """Return a document as a response."""
    return Response(status, document.encode(), kind)
