"""Heads of requests: from what the parser found, and back where one is to be parsed again."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import httptools

from onibus.protocols.http.messages import Head

#: Headers by which a client offers to speak something else.
_OFFERS = ("upgrade", "connection", "http2-settings")


def read_head(method: bytes, url: bytes, headers: dict[str, str]) -> Head | None:
    """Return what the parser has read of a head; None where its path cannot be read."""
    try:
        path, query = _read_target(url)
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        return None
    return Head(method.decode(), path, query, headers)


@lru_cache(256)
def _read_target(url: bytes) -> tuple[str, str]:
    """Return path and query: most clients ask for the same few again and again."""
    read: Any = httptools.parse_url(url)
    return (read.path or b"/").decode("ascii"), (read.query or b"").decode("ascii")


@lru_cache(256)
def header_name(name: bytes) -> str:
    """Return the name of a header as it is looked for."""
    return name.decode("latin-1").lower()


def without_offers(method: bytes, target: bytes, headers: dict[str, str]) -> bytes:
    """Return the bytes of a head that offers no other protocol."""
    lines = [f"{name}: {value}" for name, value in headers.items() if name not in _OFFERS]
    head = b"%b %b HTTP/1.1\r\n" % (method, target)
    return head + "\r\n".join((*lines, "", "")).encode("latin-1")
