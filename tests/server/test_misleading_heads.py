"""Ambiguous HTTP headers are rejected (RFC 9112, 3.2, 5 and 6)."""

from __future__ import annotations

from onibus import Bus
from onibus.server.server import Server
from tests.bus_helpers import run
from tests.server.http_helpers import Client

HOST = b"Host: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: 2\r\n"


def head(*lines: bytes, first: bytes = b"POST /v1/queues HTTP/1.1") -> bytes:
    return b"".join((first, b"\r\n", *lines, b"\r\n"))


REFUSED = {
    "no host": head(LENGTH) + b"{}",
    "an empty host": head(b"Host:\r\n"),
    "two hosts": head(HOST, b"Host: elsewhere\r\n"),
    "two hosts that are one": head(HOST, HOST),
    "two hosts in two spellings": head(HOST, b"hOsT: elsewhere\r\n"),
    "two hosts in a line": head(b"Host: localhost, elsewhere\r\n"),
    "a host with a path": head(b"Host: localhost/elsewhere\r\n"),
    "a host with a user": head(b"Host: me@localhost\r\n"),
    "a host with a space": head(b"Host: local host\r\n"),
    "a host in two lines": head(b"Host: localhost\r\n .elsewhere\r\n"),
    "a host and a space before the colon": head(b"Host : localhost\r\n"),
    "a host with a wrong port": head(b"Host: localhost:http\r\n"),
    "a target elsewhere": head(HOST, first=b"GET http://elsewhere/v1/queues HTTP/1.1"),
    "a target with a user": head(HOST, first=b"GET http://me@localhost/v1/queues HTTP/1.1"),
    "a target of another scheme": head(HOST, first=b"GET ftp://localhost/v1/queues HTTP/1.1"),
    "a target with a fragment": head(HOST, first=b"GET /v1/queues#a HTTP/1.1"),
    "a target that is a name": head(HOST, first=b"GET localhost HTTP/1.1"),
    "two lengths": head(HOST, LENGTH, b"Content-Length: 3\r\n") + b"{} ",
    "two lengths that are one": head(HOST, LENGTH, LENGTH) + b"{}",
    "two lengths in a line": head(HOST, b"Content-Length: 2, 2\r\n") + b"{}",
    "a signed length": head(HOST, b"Content-Length: +2\r\n") + b"{}",
    "a length in sixteens": head(HOST, b"Content-Length: 0x2\r\n") + b"{}",
    "an empty length": head(HOST, b"Content-Length:\r\n") + b"{}",
    "a length and chunks": head(HOST, LENGTH, CHUNKED) + b"0\r\n\r\n",
    "chunks and a length": head(HOST, CHUNKED, LENGTH) + b"0\r\n\r\n",
    "chunks twice": head(HOST, CHUNKED, CHUNKED) + b"0\r\n\r\n",
    "compressed chunks": head(HOST, b"Transfer-Encoding: gzip, chunked\r\n") + b"0\r\n\r\n",
    "chunks, then compressed": head(HOST, b"Transfer-Encoding: chunked, gzip\r\n") + b"0\r\n\r\n",
    "chunks in two lines": head(HOST, CHUNKED, b"Transfer-Encoding: identity\r\n") + b"0\r\n\r\n",
    "nearly chunks": head(HOST, b"Transfer-Encoding: xchunked\r\n") + b"0\r\n\r\n",
    "chunks of HTTP/1.0": head(HOST, CHUNKED, first=b"POST / HTTP/1.0") + b"0\r\n\r\n",
    "chunks with bare line feeds": head(HOST, CHUNKED) + b"2\n{}\n0\n\n",
    "chunks with a large size": head(HOST, CHUNKED) + b"100000000000000002\r\n{}\r\n0\r\n\r\n",
    "a header in two lines": head(HOST, b"X-Thing: a\r\n\tb\r\n"),
    "a line before the headers": head(b" X-Thing: a\r\n", HOST),
    "a bare line feed": head(b"Host: localhost\nX-Thing: a\r\n"),
    "a bare carriage return": head(b"Host: localhost\rX-Thing: a\r\n"),
    "a zero byte": head(HOST, b"X-Thing: a\0b\r\n"),
    "two credentials": head(HOST, b"Authorization: a\r\n", b"Authorization: b\r\n"),
    "two types": head(HOST, b"Content-Type: a/b\r\n", b"Content-Type: c/d\r\n"),
    "two targets of SQS": head(HOST, b"X-Amz-Target: a\r\n", b"X-Amz-Target: b\r\n"),
    "two dates of SQS": head(HOST, b"X-Amz-Date: a\r\n", b"X-Amz-Date: b\r\n"),
    "HTTP/2 in the wrong form": head(HOST, first=b"GET /v1/queues HTTP/2.0"),
    "HTTP/0.9": b"GET /v1/queues\r\n\r\n",
    "another version": head(HOST, first=b"GET /v1/queues HTTP/1.2"),
    "an upgrade without a host": head(b"Connection: upgrade\r\n", b"Upgrade: websocket\r\n"),
    "a tunnel": head(HOST, first=b"CONNECT elsewhere:80 HTTP/1.1"),
    "a tunnel to us": head(HOST, first=b"CONNECT localhost HTTP/1.1"),
}
SERVED = {
    "a host": head(HOST, first=b"GET /livez HTTP/1.1"),
    "a host with a port": head(b"Host: localhost:5300\r\n", first=b"GET /livez HTTP/1.1"),
    "an address": head(b"Host: [::1]:5300\r\n", first=b"GET /livez HTTP/1.1"),
    "a name of containers": head(b"Host: my_bus.local\r\n", first=b"GET /livez HTTP/1.1"),
    "no host in HTTP/1.0": head(first=b"GET /livez HTTP/1.0"),
    "the whole address": head(HOST, first=b"GET http://LOCALHOST/livez HTTP/1.1"),
    "two that are a list": head(
        HOST, b"Accept: a/b\r\nAccept: c/d\r\n", first=b"GET /livez HTTP/1.1"
    ),
    "spaces around a value": head(b"Host:  localhost \t\r\n", first=b"GET /livez HTTP/1.1"),
}
#: A request that a proxy could take for a part of the body.
SMUGGLED = head(HOST, first=b"GET /livez HTTP/1.1")


@run
async def test_misleading_heads_are_refused_and_nothing_after_them_is_read() -> None:
    found = {}
    async with Bus.ephemeral() as bus, Server(bus, None, http_port=0, sqs_port=0) as server:
        for port in (server.http_port, server.sqs_port):
            assert port is not None
            client = Client(port)
            for name, sent in REFUSED.items():
                raw = await client.raw()
                await raw.write(sent + SMUGGLED)
                status, headers, _ = await raw.answer()
                if (status, headers.get("connection")) != (400, "close") or not await raw.ended():
                    found[name] = status
            await client.close()
    assert not found


@run
async def test_heads_that_mislead_nobody_are_served() -> None:
    found = {}
    async with Bus.ephemeral() as bus, Server(bus, None, http_port=0) as server:
        client = Client(server.http_port)
        for name, sent in SERVED.items():
            raw = await client.raw()
            await raw.write(sent)
            status = (await raw.answer())[0]
            if status not in (200, 403):  # 403 for hosts that are not local
                found[name] = status
        await client.close()
    assert not found


@run
async def test_there_are_only_so_many_headers() -> None:
    async with Bus.ephemeral() as bus, Server(bus, None, http_port=0) as server:
        client = Client(server.http_port)
        for count, expected in ((190, 200), (250, 431)):
            lines = [b"x-%d: y\r\n" % number for number in range(count)]
            raw = await client.raw()
            await raw.write(head(HOST, *lines, first=b"GET /livez HTTP/1.1"))
            assert (await raw.answer())[0] == expected
        await client.close()
