"""Request headers: conversion from the parser's results, and back to bytes to parse again."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import httptools

from onibus.protocols.http.messages import Head

#: Headers by which a client offers another protocol.
_OFFERS = ("upgrade", "connection", "http2-settings")
#: Headers with a single value. Of two values, one reader takes the first and another the last.
SINGLE = frozenset(
    {
        *("authorization", "content-length", "content-type", "expect", "host", "origin"),
        *("sec-websocket-key", "sec-websocket-version", "transfer-encoding", "traceparent"),
        *("x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "x-amz-target"),
    }
)
HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


def misleading(version: str, target: bytes, headers: dict[str, str]) -> str:
    """Return why headers are ambiguous, or an empty string.

    RFC 9112, 3.2 and 6.1: exactly one Host, equal to the host of an absolute target, and no framing
    other than a length or chunks.
    """
    if version not in ("1.0", "1.1"):
        return f"unsupported version HTTP/{version}: use HTTP/1.1"
    host = headers.get("host")
    if host is None:
        if version == "1.1":
            return "no host header: send one"
    elif not HOST.fullmatch(host):
        return "invalid host header: send a host name or address, with or without a port"
    if not target.startswith((b"/", b"*")) and not _is_at(target, host):
        return "the request target and the host header name different hosts"
    if b"#" in target:
        return "the request target has a fragment: remove it"
    coding = headers.get("transfer-encoding")
    if coding is not None and (coding.lower() != "chunked" or version == "1.0"):
        return "unsupported transfer-encoding: use chunked, with HTTP/1.1"
    return ""


def _is_at(target: bytes, host: str | None) -> bool:
    """Return whether an absolute target names this host."""
    scheme, mark, rest = target.decode("latin-1").partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    known = mark and scheme.lower() in ("http", "https")
    return bool(known) and host is not None and authority.lower() == host.lower()


def read_head(method: bytes, url: bytes, headers: dict[str, str]) -> Head | None:
    """Return the header that the parser has read, or None if its path is invalid."""
    try:
        path, query = _read_target(url)
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        return None
    return Head(method.decode(), path, query, headers)


@lru_cache(256)
def _read_target(url: bytes) -> tuple[str, str]:
    """Return path and query, cached because clients repeat the same few."""
    read: Any = httptools.parse_url(url)
    return (read.path or b"/").decode("ascii"), (read.query or b"").decode("ascii")


@lru_cache(256)
def header_name(name: bytes) -> str:
    """Return the name of a header in the form used for lookups."""
    return name.decode("latin-1").lower()


def without_offers(method: bytes, target: bytes, headers: dict[str, str]) -> bytes:
    """Return the bytes of a header without offers of other protocols."""
    lines = [f"{name}: {value}" for name, value in headers.items() if name not in _OFFERS]
    head = b"%b %b HTTP/1.1\r\n" % (method, target)
    return head + "\r\n".join((*lines, "", "")).encode("latin-1")
