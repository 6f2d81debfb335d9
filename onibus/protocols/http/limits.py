"""What connections may take: every number has its reason beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection, or all together, may take."""

    #: bytes of the request line and all headers; as nginx and h11 have it, about
    head_bytes_max: int = 32 << 10
    #: bytes of a body, as sent and once decompressed; a batch of Arrow is the largest
    body_bytes_max: int = 256 << 20
    #: bytes of a body that are read before it is known who sends it
    unknown_bytes_max: int = 256 << 10
    #: bytes of all bodies that are being read or worked on, and of answers that nobody reads
    all_bodies_bytes_max: int = 1 << 30
    #: bytes that the Arrow rows of one request have in memory
    table_bytes_max: int = 1 << 30
    #: bytes of the messages that one receive gives out; one message is, however large
    answer_bytes_max: int = 64 << 20
    #: seconds for the head of a request that has begun, and for its body besides the rate below
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    #: bytes a second that a body must bring on average
    body_rate_min: int = 16 << 10
    #: seconds that a connection may do nothing
    idle_seconds: float = 120.0
    #: seconds in which an answer must find a reader
    write_seconds: float = 60.0
    #: seconds that a client which was refused may go on sending: cutting it off at once would take
    #: the answer from it
    linger_seconds: float = 2.0
    #: connections of all listeners; fewer if the limit of open files is too low
    connections_max: int = 20_000
    #: bytes that the server keeps for all unauthenticated clients
    strangers_bytes_max: int = 64 << 20
    #: failed authentications of one address: at once, and each second after that
    failures_max: int = 100
    failures_per_second: float = 10.0
