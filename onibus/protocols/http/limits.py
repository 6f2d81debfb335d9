"""Limits of connections, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection, or of all together."""

    #: bytes of the request line and all headers, about as in nginx and h11
    head_bytes_max: int = 32 << 10
    #: bytes of a body, as sent and decompressed; Arrow batches are the largest
    body_bytes_max: int = 256 << 20
    #: bytes of a body read before its sender is authenticated
    unknown_bytes_max: int = 256 << 10
    #: bytes of all bodies being read or processed, and of all unread responses
    all_bodies_bytes_max: int = 1 << 30
    #: bytes in memory of the Arrow rows of one request
    table_bytes_max: int = 1 << 30
    #: bytes of the messages in one receive, which always returns one message
    answer_bytes_max: int = 16 << 20
    #: seconds for the header of a request, and for its body in addition to the rate below
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    #: bytes per second that a body must deliver on average
    body_rate_min: int = 16 << 10
    #: seconds that a connection may be idle
    idle_seconds: float = 120.0
    #: seconds in which a client must read its response
    write_seconds: float = 60.0
    #: seconds that a rejected client may continue to send: closing at once would discard the
    #: response
    linger_seconds: float = 2.0
    #: connections of all listeners; fewer if the limit of open files is too low
    connections_max: int = 20_000
    #: bytes that the server keeps for all unauthenticated clients
    strangers_bytes_max: int = 64 << 20
    #: failed authentications per address: at once, and per second after that
    failures_max: int = 100
    failures_per_second: float = 10.0
