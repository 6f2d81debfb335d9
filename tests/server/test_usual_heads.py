"""What is read without the parser is what the parser would have made of it, or is not read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onibus.protocols.http.connections import Connections
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.messages import Request, Respond, Response
from onibus.protocols.http.usual_heads import HEAD_BYTES_MAX, LINES_KEPT, Lines, UsualHeads
from tests.bus_helpers import skip_seconds

BODY_BYTES_MAX = 200
HEADS = UsualHeads(BODY_BYTES_MAX)
USUAL = [
    b"Host: 127.0.0.1:9324",
    b"Content-Type: application/x-amz-json-1.0",
    b"X-Amz-Target: AmazonSQS.SendMessage",
    b"X-Amz-Date: 20260101T000000Z",
    b"Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sqs/aws4_request, "
    b"SignedHeaders=host;x-amz-date, Signature=00ff",
    b"User-Agent: aws-sdk-js/3.1164 ua/2.1 os/linux#6.1  lang/js: x",
    b"Connection: keep-alive",
]


class Asked:
    """An app that keeps what it is asked, behind a transport that takes every answer."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.written = b""

    def __call__(self, request: Request, respond: Respond) -> None:
        self.requests.append(request)
        respond(Response(204))

    def look(self, request: Request) -> Response | None:
        return None

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def write_eof(self) -> None: ...

    def close(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Nothing(UsualHeads):
    """Leaves everything to the parser."""

    def split(self, data: bytes) -> Any:
        return None

    def alone(self, data: bytes) -> Any:
        return None


def parsed(data: bytes, heads: UsualHeads, *cuts: int, unread: Collection[int] = ()) -> Asked:
    """Let a connection have some bytes, cut into pieces; return what came of it.

    `unread`: the pieces that come while the client does not read its answers. Over TLS a transport
    may say so at any time.
    """
    pieces = [data[start:end] for start, end in pairwise((0, *cuts, len(data)))]

    async def feed() -> Asked:
        asked = Asked()
        connections = Connections(asked)
        connections.heads = heads
        connection = connections()
        connection.connection_made(asked)
        paused = False
        for number, piece in enumerate([*pieces, b""]):
            if paused != (number in unread and number < len(pieces)):
                paused = not paused
                (connection.pause_writing if paused else connection.resume_writing)()
            if piece:
                connection.data_received(piece)
            for _ in range(3):
                await asyncio.sleep(0)
        connection.connection_lost(None)
        return asked

    return asyncio.run(feed())


def what(request: Request) -> tuple[object, ...]:
    """Return all that is known of a request."""
    head = request.head
    said = (head.method, head.path, head.query_text, head.headers, head.content_type)
    return *said, request.body, request.keep_alive, request.takes_chunks


def check_same(data: bytes) -> bool:
    """Tell whether some bytes are read without the parser; then the parser reads the same."""
    if HEADS.split(data) is None:
        return False
    ours, parsers = parsed(data, HEADS), parsed(data, Nothing(0))
    assert len(ours.requests) == len(parsers.requests) == 1
    assert what(ours.requests[0]) == what(parsers.requests[0])
    assert parsers.written.startswith(b"HTTP/1.1 204")
    assert ours.written.startswith(b"HTTP/1.1 204")
    return True


def check_same_in_pieces(data: bytes, *cuts: int, unread: Collection[int] = ()) -> None:
    """Some bytes in pieces are what the parser makes of them, answered alike."""
    ours = parsed(data, HEADS, *cuts, unread=unread)
    parsers = parsed(data, Nothing(0), *cuts, unread=unread)
    assert [what(one) for one in ours.requests] == [what(one) for one in parsers.requests]
    assert ours.written[:12] == parsers.written[:12]
    assert ours.written.count(b"HTTP/1.1") == parsers.written.count(b"HTTP/1.1")


def request(
    *lines: bytes, first: bytes = b"POST / HTTP/1.1", body: bytes = b"{}", length: bytes = b""
) -> bytes:
    """Return the bytes of a request; of any host, unless the lines say which."""
    host = () if any(b"host" in line.lower() for line in lines) else (b"Host: a",)
    last = b"Content-Length: " + (length or b"%d" % len(body))
    return b"\r\n".join((first, *host, *lines, last, b"", body))


def test_what_clients_send_is_read_without_the_parser() -> None:
    assert check_same(request(*USUAL))
    assert check_same(request(*USUAL, first=b"POST /000000000000/orders.fifo HTTP/1.1"))
    assert check_same(request(*USUAL, body=b"\r\n\r\nPOST / HTTP/1.1\r\n\r\n"))
    assert check_same(request(body=b""))
    assert check_same(request(b"Host: [::1]:9324"))


@pytest.mark.parametrize(
    "data",
    [
        request(first=b"GET / HTTP/1.1"),
        request(first=b"POST / HTTP/1.0"),
        request(first=b"POST /?Action=ListQueues HTTP/1.1"),
        request(first=b"POST //elsewhere/ HTTP/1.1"),
        request(first=b"POST http://elsewhere/ HTTP/1.1"),
        request(first=b"POST  / HTTP/1.1"),
        b"\r\n" + request(),
        request(b"Transfer-Encoding: chunked"),
        request(b"Transfer_Encoding: chunked"),
        request(b"Content-Length: 2"),
        request(b"content-length: 3"),
        request(b"Host: a", b"host: a"),
        request(b"Host: a, b"),
        request(b"Host: a/b"),
        request(b"Not-Host: a"),
        request(length=b"+2"),
        request(length=b"02"),
        request(length=b"3"),
        request(length=b"1"),
        request(length=b"2 "),
        request(b"Expect: 100-continue"),
        request(b"Upgrade: h2c"),
        request(b"Connection: close"),
        request(b"Connection: keep-alive, upgrade"),
        request(b"Proxy-Connection: close"),
        request(b"Host:a"),
        request(b"Host : a"),
        request(b"Host:  a"),
        request(b"Host: a "),
        request(b"Host: "),
        request(b" Host: a"),
        request(b"Host: a", b" folded"),
        request(b"Host: a\tb"),
        request(b"Host: a\0b"),
        request(b"Host: a\rb"),
        request(b"Host: a\nTransfer-Encoding: chunked"),
        request("Host: é".encode()),
        request(b": a"),
        request(b"a"),
        request(b"a: " + b"x" * HEAD_BYTES_MAX),
        request(body=b"x" * (BODY_BYTES_MAX + 1)),
        request() + request(),
        request()[:-1],
        b"POST / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\nContent-Length: 2\n\n\r\n\r\n",
        b"\r\n\r\n",
        b"",
    ],
)
def test_what_leaves_a_question_goes_to_the_parser(data: bytes) -> None:
    assert HEADS.split(data) is None


names = st.one_of(
    st.sampled_from(
        [b"Host", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Expect", b"X-A", b"TE"]
    ),
    st.binary(min_size=0, max_size=4),
)
values = st.one_of(
    st.sampled_from([b"2", b"chunked", b"keep-alive", b"Keep-Alive", b"close", b"a b", b"a\tb"]),
    st.binary(max_size=6),
    st.text("a :;,=/\t~\x7f", max_size=6).map(str.encode),
)
lines = st.one_of(
    st.sampled_from(USUAL),
    st.builds(b"%b%b%b".__mod__, st.tuples(names, st.sampled_from([b": ", b":", b" : "]), values)),
)
firsts = st.one_of(
    st.just(b"POST / HTTP/1.1"),
    st.text("/a.~-_%?#:@", max_size=6).map(lambda path: b"POST /%b HTTP/1.1" % path.encode()),
)
bodies = st.one_of(st.just(b"{}"), st.binary(max_size=8), st.just(b"\r\n\r\n"))


@given(first=firsts, some=st.lists(lines, max_size=5), body=bodies)
@settings(max_examples=600, deadline=None)
def test_heads_made_of_anything_are_read_as_the_parser_reads_them(
    first: bytes, some: list[bytes], body: bytes
) -> None:
    check_same(request(*some, first=first, body=body))


@given(
    some=st.lists(lines, max_size=3),
    many=st.lists(bodies, min_size=1, max_size=3),
    cut=st.lists(st.integers(0, 400), max_size=3),
    at_ends=st.booleans(),
    unread=st.sets(st.integers(0, 8), max_size=4),
)
@settings(max_examples=600, deadline=None)
def test_requests_in_any_pieces_are_read_as_the_parser_reads_them(
    some: list[bytes], many: list[bytes], cut: list[int], at_ends: bool, unread: set[int]
) -> None:
    data, ends = b"", []
    for body in many:
        data += request(*some, body=body)
        # Where clients cut: between head and body, and between requests.
        ends += [len(data) - len(body), len(data)]
    # The same cut twice: nothing comes for a moment, in which answers may be unread.
    cuts = sorted([*(one for one in cut if one < len(data)), *(ends[:-1] * 2 if at_ends else ())])
    check_same_in_pieces(data, *cuts, unread=unread)


@pytest.mark.parametrize("unread", [(), (1,), (2,), (1, 2)])
def test_a_body_is_not_read_as_a_request_where_answers_are_unread_meanwhile(
    unread: tuple[int, ...],
) -> None:
    body = request(b"Host: a", first=b"POST /smuggled HTTP/1.1")
    data = request(*USUAL, body=body)
    head = len(data) - len(body)
    asked = parsed(data + data, HEADS, head, head, len(data), len(data) + head, unread=unread)
    assert [(one.path, one.body) for one in asked.requests] == [("/", body)] * 2


def test_a_head_alone_waits_for_its_body() -> None:
    data = request(*USUAL, body=b"x" * 9)
    head = len(data) - 9
    alone = HEADS.alone(data[:head])
    assert alone is not None
    assert alone.split(data[head:]) is not None
    for other in (b"x" * 8, b"x" * 10, b""):
        assert alone.split(other) is None
    for start in (data, data[: head - 1], data[: head + 1], data[:head] * 2):
        assert HEADS.alone(start) is None
    for line in (b"Expect: 100-continue", b"Transfer-Encoding: chunked", b"Content-Length: 9"):
        unusual = request(line, body=b"x" * 9)
        assert HEADS.alone(unusual[:-9]) is None
    for length in (b"0", b"09", b"+9", b"201", b"9" * 30):
        assert HEADS.alone(request(length=length, body=b"")) is None
    assert HEADS.alone(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n") is None


@pytest.mark.parametrize("came", [b"", b"x"])
def test_a_body_that_does_not_come_is_waited_for_as_long_as_the_parser_waits(came: bytes) -> None:
    """From the head on; and the connection is told, and good for nothing more."""

    async def late(heads: UsualHeads) -> bytes:
        asked = Asked()
        connections = Connections(asked, Limits(body_seconds=2_000, idle_seconds=100_000))
        connections.heads = heads
        connection = connections()
        connection.connection_made(asked)
        data = request(*USUAL, body=b"x" * 9)
        connection.data_received(data[:-9])
        skip_seconds(1_200)
        await asyncio.sleep(0.001)
        if came:
            connection.data_received(came)
        skip_seconds(600)
        await asyncio.sleep(0.001)
        assert not asked.written
        skip_seconds(300)
        await asyncio.sleep(0.001)
        connection.connection_lost(None)
        return asked.written[:12]

    async def both() -> None:
        for heads in (HEADS, Nothing(0)):
            assert await late(heads) == b"HTTP/1.1 408"

    asyncio.run(both())


@given(st.data())
@settings(max_examples=600, deadline=None)
def test_usual_heads_with_bytes_altered_are_read_as_the_parser_reads_them(data: Any) -> None:
    altered = bytearray(request(*USUAL))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(altered)))
        new = data.draw(st.one_of(st.binary(max_size=2), st.sampled_from([b"\r\n", b": ", b"\n"])))
        altered[at : at + data.draw(st.integers(0, 2))] = new
    check_same(bytes(altered))


def test_remembered_lines_are_bounded_and_signatures_not_kept() -> None:
    lines = Lines()
    for number in range(3 * LINES_KEPT + 1):
        assert lines[b"a: %d" % number] == ("a", str(number))
        assert lines[b"Authorization: %d" % number] == ("authorization", str(number))
        assert len(lines) <= LINES_KEPT
    assert len(lines) == 1
