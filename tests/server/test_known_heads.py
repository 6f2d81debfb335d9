"""Requests under a head that was read before are what the parser would have made of them."""

from __future__ import annotations

import pytest

from onibus.protocols.http.connections import Connections
from onibus.protocols.http.heads import HEAD_BYTES_MAX, HEADS_KEPT, Heads
from onibus.protocols.http.messages import Head, Request, Respond, Response
from onibus.security.keys import AccessKey, Keyring
from onibus.security.rights import Right
from onibus.server.listener import Listener
from tests.bus_helpers import run
from tests.server.http_helpers import Client, serving, token

POST = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"


class Telling:
    """An app that answers with what it was asked."""

    def __call__(self, request: Request, respond: Respond) -> None:
        told = f"{request.method} {request.path} {request.query} ".encode()
        respond(Response(200, told + request.headers["host"].encode() + b" " + request.body))

    def look(self, request: Request) -> Response | None:
        return None


async def asked(*pieces: bytes, answers: int) -> list[tuple[int, bytes]]:
    """Send pieces over one connection, each after the answer to the one before."""
    listener = Listener(Connections(Telling()))
    await listener.start("127.0.0.1", 0)
    client = Client(listener.port)
    raw = await client.raw()
    told = []
    for piece in pieces:
        await raw.write(piece)
        for _ in range(answers):
            status, _, body = await raw.answer()
            told.append((status, body))
    await client.close()
    listener.close()
    return told


def post(body: bytes) -> bytes:
    return POST % (len(body), body)


@run
async def test_the_same_head_again_is_the_same_request_with_another_body() -> None:
    told = await asked(post(b"one"), post(b"two"), post(b"three"), post(b"six"), answers=1)
    expected = [b"one", b"two", b"three", b"six"]
    assert told == [(200, b"POST /a {'b': 'c'} x " + body) for body in expected]


@run
async def test_what_is_sent_ahead_under_known_heads_is_answered_in_order() -> None:
    await_two = post(b"one") + post(b"two")
    told = await asked(await_two, await_two, await_two, answers=2)
    assert [body[-3:] for _, body in told] == [b"one", b"two"] * 3


@run
async def test_a_known_head_whose_body_comes_in_pieces() -> None:
    listener = Listener(Connections(Telling()))
    await listener.start("127.0.0.1", 0)
    client = Client(listener.port)
    raw = await client.raw()
    for size in (1_000, 1, 7, 60):
        await raw.write(post(b"whole"), 0.001, size)
        assert (await raw.answer())[2].endswith(b" whole")
    await client.close()
    listener.close()


@run
async def test_a_known_head_says_nothing_of_who_may_ask() -> None:
    """A key that was rotated lets nobody in, however often its token was seen."""
    old = AccessKey(name="sender", primary="send-key-send-key", rights=frozenset({Right.SEND}))
    new = AccessKey(name="sender", primary="another-key-another", rights=frozenset({Right.SEND}))
    owner = AccessKey(name="owner", primary="manage-key-manage")
    keyring = Keyring([old, owner])
    async with serving(keys=keyring) as client:
        client.http.headers.update(token("sb://x/", "owner", owner.primary))
        await client.do("PUT", "/queues/orders", {})
        client.http.headers.update(token("sb://x/", "sender", old.primary))
        for _ in range(3):
            await client.send("orders", "apples")
        keyring.replace([new, owner])
        await client.refused(401, "unauthorized", "POST", "/entities/orders/messages", {})


def made(data: bytes, body: bytes, **headers: str) -> tuple[Heads, Request]:
    heads = Heads(body_bytes_max=100)
    return heads, Request(Head("POST", "/a", "", headers), body)


def test_a_head_is_kept_with_the_length_that_it_gives() -> None:
    data = post(b"one")
    heads, request = made(data, b"one")
    heads.keep(data, request)
    assert heads.split(post(b"two")) == (request.head, b"two")
    for other in (post(b"four"), data + b"x", data[:-1], data + data, data[:20], b""):
        assert heads.split(other) is None


@pytest.mark.parametrize(
    ("data", "body", "headers"),
    [
        (post(b"one") + b"GET", b"one", {}),
        (post(b"one")[:-1], b"one", {}),
        (b"POST /a HTTP/1.1\nContent-Length: 3\n\n\r\n\r\none", b"one", {}),
        (post(b"one"), b"one", {"expect": "100-continue"}),
        (post(b"one"), b"one", {"transfer-encoding": "chunked"}),
        (post(b"one"), b"one", {"upgrade": "h2c"}),
        (post(b"x" * 101), b"x" * 101, {}),
        (b"\r\n\r\none", b"one", {}),
        (b"GET /" + b"x" * HEAD_BYTES_MAX + b" HTTP/1.1\r\n\r\n", b"", {}),
    ],
)
def test_what_is_out_of_the_ordinary_is_parsed_each_time(
    data: bytes, body: bytes, headers: dict[str, str]
) -> None:
    heads, request = made(data, body, **headers)
    heads.keep(data, request)
    assert heads.split(data) is None


def test_heads_are_bounded_in_number() -> None:
    heads = Heads(body_bytes_max=100)
    for number in range(3 * HEADS_KEPT):
        data = b"GET /%d HTTP/1.1\r\n\r\n" % number
        heads.keep(data, Request(Head("GET", f"/{number}", "", {}), b""))
        assert heads.split(data) is not None
    assert heads.split(b"GET /0 HTTP/1.1\r\n\r\n") is None
