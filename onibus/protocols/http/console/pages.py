"""Serving the console's files, and what its page must know before a login.

The files are part of the package and are read once. Nothing is loaded from elsewhere, and the
policy in every response allows no inline script, no frame and no other origin.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from onibus.operation.version import own_version
from onibus.protocols.http.messages import Response
from onibus.protocols.http.problems import refusal
from onibus.protocols.http.route import Call, Route

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-cache"),
)


class About(msgspec.Struct):
    """What the console must know before a login."""

    version: str
    #: none, development (the well-known key works) or key
    login: str


@cache
def _contents() -> dict[str, bytes]:
    """Return all files by name."""
    folder = files("onibus.protocols.http.console") / "static"
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}


async def page(call: Call) -> Response:
    """Return the page itself."""
    return _file("index.html")


async def redirect(call: Call) -> Response:
    """Send a browser that left out the slash to the page."""
    return Response(302, headers=(("location", "/console/"),))


async def file(call: Call) -> Response:
    """Return a file of the console."""
    return _file(call.names["file"])


def _file(name: str) -> Response:
    body = _contents().get(name)
    kind = _TYPES.get(name.rpartition(".")[2])
    if body is None or kind is None:
        return refusal(404, "the console has no such file")
    return Response(200, body, kind, _HEADERS)


async def about(call: Call) -> About:
    """Return the version, and what a login needs."""
    return About(own_version(), call.app.login)


def _route(path: str, summary: str, handler: object) -> Route:
    return Route(
        method="GET",
        path=path,
        summary=summary,
        right=None,
        handler=handler,  # type: ignore[arg-type]
        gives_text=True,
        tag="console",
    )


ROUTES = [
    _route("/console", "Redirect to the console.", redirect),
    _route("/console/", "Show the console in a browser.", page),
    Route(
        method="GET",
        path="/console/about.json",
        summary="Tell the console's page how to log in.",
        right=None,
        handler=about,
        gives=About,
        tag="console",
    ),
    _route("/console/{file}", "Return a file of the console.", file),
]
