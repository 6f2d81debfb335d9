"""Reports about lakes over HTTP: captures and audits hand them in, the console shows them."""

from __future__ import annotations

import msgspec

from onibus.api.log import ReaderReport
from onibus.directory import readers
from onibus.directory.readers import find_reader
from onibus.protocols.http.messages import Response
from onibus.protocols.http.problems import refusal
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right

#: A page runs no script and loads nothing, and its origin is not that of the console.
_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_HEADERS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
)


class PageOut(msgspec.Struct):
    """Where a browser finds a page: once, within a minute."""

    path: str


async def report(call: Call) -> None:
    """Keep a report with its reader."""
    given: ReaderReport = call.decode(ReaderReport)
    broker, name = call.bus.broker, call.names["reader"]
    entity = broker.find(call.entity)
    find_reader(entity, name)
    has_page = given.page is not None
    if given.page is not None:
        # Before the reader shows that there is one.
        await call.app.reports.keep(entity.incarnation, name, given.page)
    key = call.granted.name
    await call.bus.ask(
        lambda reply: readers.report(broker, call.entity, name, given, reply, key, has_page)
    )


async def page(call: Call) -> PageOut:
    """Return the path of a page."""
    entity = call.bus.broker.find(call.entity)
    find_reader(entity, call.names["reader"])
    ticket = call.app.reports.ticket(entity.incarnation, call.names["reader"])
    return PageOut(f"/console/reports/{ticket}")


async def open_page(call: Call) -> Response:
    """Return a page."""
    content = await call.app.reports.open(call.names["ticket"])
    if content is None:
        return refusal(404, "this link was used or expired: open the report again in the console")
    return Response(200, content, "text/html; charset=utf-8", _HEADERS)


ROUTES = [
    Route(
        method="POST",
        path="/v1/entities/{entity}/readers/{reader}/report",
        summary="Report what the lake behind a reader has, or the verdict of its audit.",
        right=Right.LISTEN,
        handler=report,
        takes=ReaderReport,
        tag="readers",
    ),
    Route(
        method="POST",
        path="/v1/entities/{entity}/readers/{reader}/page",
        summary="Return a path that opens the page about a lake, once, within a minute.",
        right=Right.LISTEN,
        handler=page,
        gives=PageOut,
        tag="readers",
    ),
    Route(
        method="GET",
        path="/console/reports/{ticket}",
        summary="Show the page about a lake.",
        right=None,
        handler=open_page,
        gives_text=True,
        tag="console",
    ),
]
