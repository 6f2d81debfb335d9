"""Connections of HTTP: requests cut anywhere, sent ahead, too slow, too large, half open."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime

import pytest

from onibus import Bus
from onibus.protocols.amqp.serving import AmqpConnections
from onibus.protocols.amqp.websocket import Upgrades
from onibus.protocols.http import date
from onibus.protocols.http.connections import Connections
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.messages import Request, Respond, Response
from onibus.security.origins import Origins
from tests.bus_helpers import (
    PATIENCE_S,
    msg,
    run,
    skip_seconds,
    until,
    until_not_waited_for,
    until_waited_for,
)
from tests.server.http_helpers import Client, get, post, serving

SEND = "/v1/entities/q/messages"
RECEIVE = "/v1/entities/q/receive"


def number_in(body: bytes) -> int:
    return int(json.loads(body)["sequence_number"])


class Echo:
    """An app that answers with what came, at once or after other requests had their turn."""

    def __init__(self, delays: random.Random | None = None) -> None:
        self.delays = delays

    def __call__(self, request: Request, respond: Respond) -> None:
        told = f"{request.method} {request.path} ".encode() + request.body
        if self.delays is not None and self.delays.random() < 0.5:
            asyncio.get_running_loop().call_later(0.001, respond, Response(200, told))
        else:
            respond(Response(200, told))

    def look(self, request: Request) -> Response | None:
        return None


@asynccontextmanager
async def echoing(
    limits: Limits | None = None, seed: int | None = None
) -> AsyncIterator[tuple[Connections, Client]]:
    """Connections of an echo, and a client of it."""
    connections = Connections(Echo(None if seed is None else random.Random(seed)), limits)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(connections, "127.0.0.1", 0)
    client = Client(listener.sockets[0].getsockname()[1])
    yield connections, client
    await client.close()
    listener.close()
    await connections.drain(PATIENCE_S)
    assert connections.open == set()
    assert connections.peers.bodies.held_bytes == 0


def chunked(path: str, *pieces: bytes, trailer: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n%b\r\n" % trailer


@run
async def test_a_request_byte_by_byte() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        await raw.write(post(SEND, {"body": "slow"}), pause=0)
        status, _, body = await raw.answer()
        assert (status, number_in(body)) == (200, 1)


@run
@pytest.mark.parametrize("seed", range(4))
async def test_requests_cut_anywhere_come_out_whole_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    async with echoing(seed=seed) as (_, client):
        await exchange(client, chance)


async def exchange(client: Client, chance: random.Random) -> None:
    """Send requests of all kinds in pieces of any size; all must be answered, in their order."""
    requests, wanted = [], []
    for number in range(120):
        body = chance.randbytes(chance.choice([0, 1, 10, 3_000, 20_000]))
        path = f"/r{number}"
        kind = chance.randrange(4)
        if kind == 0:
            requests.append(get(path))
            body = b""
        elif kind == 1:
            cuts = sorted(chance.randrange(len(body) + 1) for _ in range(3))
            pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
            requests.append(
                chunked(path, *(piece for piece in pieces if piece), trailer=b"a: b\r\n")
            )
        elif kind == 2:
            requests.append(post(path, body, "connection: upgrade", "upgrade: h2c"))
        else:
            requests.append(post(path, body))
        wanted.append((b"GET" if kind == 0 else b"POST") + f" {path} ".encode() + body)
    raw = await client.raw()
    stream = b"".join(requests)

    async def write() -> None:
        start = 0
        while start < len(stream):
            size = chance.choice([1, 7, 100, 5_000, 100_000])
            raw.writer.write(stream[start : start + size])
            start += size
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        await raw.writer.drain()

    writing = asyncio.create_task(write())
    for body in wanted:
        assert (await raw.answer())[::2] == (200, body)
    await writing


@run
async def test_answers_come_in_order_though_the_first_waits() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        await raw.write(
            post(RECEIVE, {"wait_ms": 300}) + post(SEND, {"body": "1"}) + get("/nothing")
        )
        assert json.loads((await raw.answer())[2]) == {"messages": []}
        assert number_in((await raw.answer())[2]) == 1
        assert (await raw.answer())[0] == 404


@run
async def test_what_is_no_request_is_told_after_what_came_before() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        await raw.write(post(SEND, {"body": "1"}) + b"nonsense\r\n\r\n" + post(SEND, {"body": "2"}))
        assert (await raw.answer())[0] == 200
        status, headers, body = await raw.answer()
        assert (status, headers["connection"]) == (400, "close")
        problem = json.loads(body)
        assert (problem["type"], problem["outcome"]) == ("bad-request", "refused")
        assert await raw.ended()
        assert (await client.do("GET", "/queues/q"))["active_count"] == 1


@run
async def test_the_last_request_is_answered_and_what_follows_it_is_not() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        first, last = post(SEND, {"body": "1"}), post(SEND, {"body": "2"}, "connection: close")
        await raw.write(first + last + post(SEND, {"body": "3"}))
        status, headers, _ = await raw.answer()
        assert status == 200
        assert "connection" not in headers
        status, headers, _ = await raw.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await raw.ended()
        assert (await client.do("GET", "/queues/q"))["active_count"] == 2


@run
async def test_a_client_that_has_said_all_is_still_answered() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        await raw.write(post(SEND, {"body": "1"}) + post(SEND, {"body": "2"}))
        raw.writer.write_eof()
        assert number_in((await raw.answer())[2]) == 1
        assert number_in((await raw.answer())[2]) == 2
        assert await raw.ended()


@run
async def test_a_client_that_goes_while_it_waits_gets_no_message() -> None:
    bus = await Bus.ephemeral()
    async with serving(bus=bus) as client:
        await client.do("PUT", "/queues/q", {})
        for delete in (False, True):
            raw = await client.raw()
            await raw.write(post(RECEIVE, {"wait_ms": 20_000, "delete": delete}))
            await until_waited_for(bus, "q")
            raw.close()
            await until_not_waited_for(bus, "q")
            await client.send("q", "for somebody who is there")
            (message,) = await client.receive("q", delete=True)
            assert "delivery_count" not in message


@run
async def test_old_clients_and_heads() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"retention_ms": 60_000})
        await client.send("q", "x")
        raw = await client.raw()
        await raw.write(b"GET /v1/alarms HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        status, headers, body = await raw.answer()
        assert (status, headers["connection"], body) == (200, "keep-alive", b'{"alarms":[]}')
        await raw.write(get("/v1/alarms", method="HEAD"))
        status, headers, _ = await raw.answer(bodiless=True)
        assert (status, headers["content-length"]) == (200, "13")
        await raw.write(get("/nothing", method="HEAD"))
        assert (await raw.answer(bodiless=True))[0] == 404
        # Chunks are not for HTTP/1.0: the end of the body is the end of the connection.
        await raw.write(b"GET /v1/entities/q/log/messages/0?start=1 HTTP/1.0\r\n\r\n")
        status, headers, _ = await raw.answer()
        assert status == 200
        assert "transfer-encoding" not in headers
        assert (await raw.reader.read()).startswith(b"\xff\xff\xff\xff")


@run
async def test_a_client_may_ask_before_it_sends() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        request = post(SEND, {"body": "asked"}, "expect: 100-continue")
        head, body = request.split(b"\r\n\r\n")
        await raw.write(post(RECEIVE, {"wait_ms": 100}) + head + b"\r\n\r\n")
        assert (await raw.answer())[0] == 200
        assert (await raw.answer())[0] == 100
        await raw.write(body)
        assert number_in((await raw.answer())[2]) == 1
        too_large = post(SEND, b"", "expect: 100-continue").replace(
            b"content-length: 0", b"content-length: 999999999999"
        )
        await raw.write(too_large)
        assert (await raw.answer())[0] == 413
        assert await raw.ended()


@run
async def test_another_protocol_is_not_spoken_and_the_request_is_answered() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        upgrade = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMA")
        await raw.write(post(SEND, {"body": "1"}, *upgrade) + post(SEND, {"body": "2"}))
        assert number_in((await raw.answer())[2]) == 1
        assert number_in((await raw.answer())[2]) == 2
        await raw.write(b"CONNECT other:80 HTTP/1.1\r\nhost: other\r\n\r\n")
        assert (await raw.answer())[0] == 400
        assert await raw.ended()


@run
async def test_a_websocket_waits_for_what_was_asked_before() -> None:
    # The first answer comes late, the others at once.
    async with Bus.ephemeral() as bus, echoing(seed=1) as (connections, client):
        connections.upgrades = Upgrades(AmqpConnections(bus, None), Origins(None))
        upgrade = get(
            "/$servicebus/websocket",
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
            "sec-websocket-protocol: AMQPWSB10",
        )
        raw = await client.raw()
        await raw.write(get("/before") + upgrade)
        assert (await raw.answer())[::2] == (200, b"GET /before ")
        assert (await raw.answer())[::2] == (200, b"GET /$servicebus/websocket ")
        await raw.write(upgrade)
        assert (await raw.reader.readline()).startswith(b"HTTP/1.1 101 ")


@run
@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"FOO / HTTP/1.1\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\nhost: x\n\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_nonsense_is_refused(nonsense: bytes) -> None:
    async with serving() as client:
        raw = await client.raw()
        await raw.write(nonsense)
        assert (await raw.answer())[0] == 400
        assert await raw.ended()
        assert (await client.ask("GET", "/queues")).status_code == 200


@run
async def test_trailers_change_nothing() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        await raw.write(
            chunked(SEND, b'{"body"', b':"x"}', trailer=b"content-type: text/plain\r\n")
        )
        assert (await raw.answer())[0] == 200
        raw.close()


# Limits


@run
@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 60_000,
        b"GET / HTTP/1.1\r\nname: " + b"a" * 60_000,
        b"GET / HTTP/1.1\r\n" + b"a" * 60_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
    ],
)
async def test_a_head_that_does_not_end_is_refused(head: bytes) -> None:
    async with serving() as client:
        raw = await client.raw()
        await raw.write(head)
        assert (await raw.answer())[0] == 431
        assert await raw.ended()


@run
async def test_who_was_refused_and_read_that_late_is_closed_all_the_same() -> None:
    async with echoing(Limits(linger_seconds=0.1)) as (connections, client):
        raw = await client.raw()
        await raw.write(get("http://[/"))
        assert (await raw.answer())[0] == 400
        [one] = connections.open
        one.pause_writing()
        one.deadline.set(0.1)
        one.resume_writing()
        await until(lambda: not connections.open)


@run
async def test_bodies_are_bounded_whatever_is_said_of_their_size() -> None:
    limits = Limits(body_bytes_max=50_000)
    async with serving(limits=limits) as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        await raw.write(post(SEND, b"x" * 50_001))
        assert (await raw.answer())[0] == 413
        assert await raw.ended()
        raw = await client.raw()
        await raw.write(chunked(SEND, *[b"x" * 1_000] * 51))
        assert (await raw.answer())[0] == 413
        assert await raw.ended()
        raw = await client.raw()
        extension = b";" + b"e" * 400_000
        await raw.write(chunked(SEND).replace(b"0\r\n\r\n", b"1" + extension + b"\r\nx\r\n"))
        assert (await raw.answer())[0] == 400
        assert await raw.ended()


@run
async def test_all_bodies_together_are_bounded() -> None:
    limits = Limits(all_bodies_bytes_max=100_000, unknown_bytes_max=1_000_000)
    async with echoing(limits) as (connections, client):
        first, second = await client.raw(), await client.raw()
        await first.write(post("/", b"x" * 90_000)[:-1])
        await until(lambda: connections.peers.bodies.held_bytes > 89_000)
        assert connections.peers.bodies.held_bytes < 91_000
        await second.write(post("/", b"x" * 20_000))
        status, _, body = await second.answer()
        assert (status, json.loads(body)["retryable"]) == (503, True)
        second.close()
        await first.write(b"x")
        assert (await first.answer())[0] == 200
        assert connections.peers.bodies.held_bytes == 0


@run
async def test_slow_heads_and_bodies_are_cut_off_and_idle_connections_closed() -> None:
    bus = await Bus.ephemeral()
    limits = Limits(head_seconds=50, body_seconds=50, body_rate_min=1 << 20, idle_seconds=50)
    async with serving(bus=bus, limits=limits) as client:
        await client.do("PUT", "/queues/q", {})
        request = post(SEND, {"body": "drop by drop"})
        head = request.index(b"\r\n\r\n")
        slow_head, slow_body, idle = [await client.raw() for _ in range(3)]
        await slow_head.write(request[:5])
        await slow_body.write(request[: head + 6])
        await idle.write(get("/v1/queues"))
        assert (await idle.answer())[0] == 200
        # The server has read both, and reads more of them later: that does not win them time.
        skip_seconds(40)
        await slow_head.write(request[5:10])
        await slow_body.write(request[head + 6 : head + 10])
        assert (await client.ask("GET", "/queues")).status_code == 200
        skip_seconds(11)
        for raw in (slow_head, slow_body):
            # Time won would be 39 seconds.
            status, _, body = await asyncio.wait_for(raw.answer(), 30)
            assert (status, json.loads(body)["type"]) == (408, "request-timeout")
        assert await idle.ended()
        # A connection with a request in progress is not idle.
        raw = await client.raw()
        await raw.write(post(RECEIVE, {"wait_ms": 20_000}))
        await until_waited_for(bus, "q")
        skip_seconds(51)
        await bus.send("q", msg("x"))
        status, _, body = await raw.answer()
        assert (status, json.loads(body)["messages"][0]["body"]) == (200, "x")


@run
async def test_who_does_not_read_its_answers_is_not_worked_for() -> None:
    limits = Limits(write_seconds=0.5)
    async with serving(limits=limits) as client:
        await client.do("PUT", "/queues/q", {"max_message_bytes": 1 << 21})
        await client.send("q", "x" * 1_000_000)
        greedy = socket.socket()
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        greedy.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(greedy, ("127.0.0.1", client.port))
        peek = post("/v1/entities/q/peek", {})
        with pytest.raises(ConnectionError):
            # Much more than all buffers on the way hold: only the end of the connection ends it.
            await asyncio.wait_for(loop.sock_sendall(greedy, peek * 500_000), PATIENCE_S)
        greedy.close()
        assert (await client.ask("GET", "/queues")).status_code == 200


@run
async def test_one_connection_too_many_is_told_so() -> None:
    async with serving(limits=Limits(connections_max=2)) as client:
        kept = [await client.raw() for _ in range(2)]
        for raw in kept:
            await raw.write(get("/v1/queues"))
            assert (await raw.answer())[0] == 200
        third = await client.raw()
        status, _, body = await third.answer()
        assert (status, json.loads(body)["type"]) == (503, "overloaded")
        assert await third.ended()
        kept[1].close()
        third.close()

        async def ask_anew() -> int:
            fourth = await client.raw()
            await fourth.write(get("/v1/queues"))
            return (await fourth.answer())[0]

        # Until the server sees that another has left.
        while (told := await ask_anew()) == 503:
            pass
        assert told == 200


@run
async def test_stopping_lets_those_who_wait_go() -> None:
    bus = await Bus.ephemeral()
    async with serving(bus=bus) as client:
        await client.do("PUT", "/queues/q", {})
        raw = await client.raw()
        await raw.write(post(RECEIVE, {"wait_ms": 20_000}))
        await until_waited_for(bus, "q")
    status, headers, body = await raw.answer()
    assert (status, headers["connection"]) == (503, "close")
    problem = json.loads(body)
    assert (problem["type"], problem["outcome"], problem["retryable"]) == (
        "stopping",
        "refused",
        True,
    )
    assert await raw.ended()


@run
async def test_every_answer_is_dated() -> None:
    async with serving() as client:
        raw = await client.raw()
        for request in (get("/v1/queues"), get("/nowhere"), get("/metrics"), b"nonsense\r\n\r\n"):
            begun = int(time.time())
            await raw.write(request)
            _, headers, _ = await raw.answer()
            moment = parsedate_to_datetime(headers["date"]).timestamp()
            assert begun <= moment <= time.time(), request


def test_the_date_is_written_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    first = date.date_line()
    assert first == b"date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
    now += 0.9
    assert date.date_line() is first
    now += 0.1
    assert date.date_line() == b"date: Tue, 14 Nov 2023 22:13:21 GMT\r\n"
