"""Heads of requests: from what the parser found, and back where one is to be parsed again."""

from __future__ import annotations

from typing import Any

import httptools

from onibus.protocols.http.messages import Head

#: Headers by which a client offers to speak something else.
_OFFERS = ("upgrade", "connection", "http2-settings")


def read_head(method: bytes, url: bytes, headers: dict[str, str]) -> Head | None:
    """Return what the parser has read of a head; None where its path cannot be read."""
    try:
        read: Any = httptools.parse_url(url)
        path, query = (read.path or b"/").decode("ascii"), (read.query or b"").decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        return None
    return Head(method.decode(), path, query, headers)


def without_offers(method: bytes, target: bytes, headers: dict[str, str]) -> bytes:
    """Return the bytes of a head that offers no other protocol."""
    lines = [f"{name}: {value}" for name, value in headers.items() if name not in _OFFERS]
    head = b"%b %b HTTP/1.1\r\n" % (method, target)
    return head + "\r\n".join((*lines, "", "")).encode("latin-1")
