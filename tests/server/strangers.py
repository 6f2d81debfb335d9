"""Bytes that peers of every kind send before they are cut, go silent or stop reading."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.frames import PROTOCOL_HEADER, SASL, SASL_HEADER, frame
from onibus.security.keys import ROOT_NAME
from onibus.security.sas import make_token
from tests.amqp.raw_client import attach, message, transfer
from tests.server.http_helpers import get, post
from tests.sqs.signing import json_request

SECRET = "a-secret-of-sufficient-length"
SEND = "/v1/entities/q/messages"
UPGRADE = get(
    "/$servicebus/websocket",
    "upgrade: websocket",
    "connection: Upgrade",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-protocol: AMQPWSB10",
)


def authorization() -> str:
    """Return the Authorization header of a client with the key."""
    token = make_token("sb://localhost/", ROOT_NAME, SECRET, int(time.time()) + 3_600)
    return f"authorization: {token}"


def http() -> dict[str, bytes]:
    """Return requests of HTTP clients, complete or in part."""
    known = authorization()
    large = post(SEND, b"x" * 2_000_000, known)
    wait = post("/v1/entities/empty/receive", {"wait_ms": 15_000}, known)
    chunked = get(SEND, known, "transfer-encoding: chunked", method="POST")
    return {
        "silent": b"",
        "part of a head": get(SEND, "x: " + "a" * 20_000)[:-9],
        "part of a small body": post(SEND, b"x" * 200_000)[:-1],
        "part of a large body": large[:1_000_000],
        "part of the chunks": chunked + b"1000\r\n" + b"x" * 4_096 + b"\r\n10",
        "answered": get("/v1/queues", known),
        "sent ahead": get("/v1/queues", known) * 50,
        "answers unread": post("/v1/entities/big/peek", {"limit": 2}, known) * 50,
        "a stream unread": post("/v1/entities/big/log/read", {}, known),
        "waiting": wait,
        "waiting, and more sent ahead": wait + large[:30_000],
        "nonsense": b"nonsense\r\n\r\n",
        "nobody's": get("/v1/queues"),
        "refused": get("/v1/queues/nowhere", known),
        "management": get("/$Resources/queues?api-version=2017-04", known),
        "part of an upgrade": UPGRADE[:-9],
    }


def amqp_open(*more: bytes, secret: str = SECRET) -> bytes:
    """Return frames that open an AMQP connection and a session, and more frames."""
    shown = to.binary(f"\0{ROOT_NAME}\0{secret}".encode())
    init = say.performative(0x41, [to.symbol("PLAIN"), shown, to.NULL])
    opened = say.performative(say.OPEN, [to.string("me"), to.NULL, to.uint(65_536)])
    begin = say.performative(say.BEGIN, [to.NULL, to.uint(0), to.uint(1_000), to.uint(1_000)])
    start = SASL_HEADER + frame(0, init, SASL) + PROTOCOL_HEADER
    return start + b"".join(frame(0, one) for one in (opened, begin, *more))


def part_of_frame(size: int) -> bytes:
    """Return all but the last byte of an AMQP frame."""
    return struct.pack(">IBBH", size + 1, 2, 0, 0) + bytes(size - 8)


def amqp() -> dict[str, bytes]:
    """Return streams of AMQP clients."""
    sender, credit = attach(0, say.SENDER, "me", "q"), say.flow(0, 1_000, 0, (0, 0, 10, False))
    filters = to.fields({"com.microsoft:session-filter": to.NULL})
    source = say.performative(say.SOURCE, [to.string("s"), *[to.NULL] * 6, filters])
    part = transfer(0, 0, b"x" * 60_000, more=True)
    declare = b"\0\x53\x77" + say.performative(say.DECLARE, [to.NULL])
    coordinator = say.performative(0x30, [to.NULL])
    return {
        "silent": b"",
        "part of a header": SASL_HEADER[:5],
        "opened": amqp_open(),
        "part of a frame": amqp_open() + part_of_frame(100_000),
        "part of a delivery": amqp_open(sender, part, part),
        "sent": amqp_open(sender, transfer(0, 0, message(b"hello"))),
        "waiting": amqp_open(attach(0, say.RECEIVER, "empty", "me"), credit),
        "received": amqp_open(attach(0, say.RECEIVER, "q", "me"), credit),
        "waiting for a session": amqp_open(attach(0, say.RECEIVER, "s", "me", from_=source)),
        "management": amqp_open(
            attach(0, say.RECEIVER, "q/$management", "me"),
            attach(1, say.SENDER, "me", "q/$management"),
        ),
        "tokens": amqp_open(
            attach(0, say.RECEIVER, "$cbs", "me"),
            attach(1, say.SENDER, "me", "$cbs"),
            transfer(1, 0, b"x" * 100, more=True),
        ),
        "transaction": amqp_open(
            attach(0, say.SENDER, "me", "x", terminus=coordinator), transfer(0, 0, declare)
        ),
        "nonsense": amqp_open(b"nonsense"),
        "a wrong key": amqp_open(secret="wrong"),
    }


def websocket_frame(content: bytes, kind: int = 2) -> bytes:
    """Return a WebSocket frame with a mask of 0."""
    length = len(content)
    if length < 126:
        head = struct.pack("!BB", 0x80 | kind, 0x80 | length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, length)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, length)
    return head + b"\0\0\0\0" + content


def websocket() -> dict[str, bytes]:
    """Return streams of AMQP clients over WebSocket."""
    return {
        "upgraded": UPGRADE,
        "part of a frame": UPGRADE + websocket_frame(b"x" * 100_000)[:50_000],
        "text": UPGRADE + websocket_frame(b"x", 1),
        "closed": UPGRADE + websocket_frame(b"", 8),
        "nonsense": UPGRADE + b"\xff" * 20,
        **{f"AMQP: {name}": UPGRADE + websocket_frame(sent) for name, sent in amqp().items()},
    }


def sqs_request(port: int, action: str, **given: Any) -> bytes:
    """Return a signed AWS JSON request as bytes."""
    endpoint = f"http://127.0.0.1:{port}"
    if "QueueUrl" in given:
        given["QueueUrl"] = f"{endpoint}/000000000000/{given['QueueUrl']}"
    content = json.dumps(given).encode()
    signed = json_request(endpoint, action, content, key=ROOT_NAME, secret=SECRET)
    lines = [f"{name}: {value}" for name, value in signed.headers.items()]
    lines += [f"Host: 127.0.0.1:{port}", f"Content-Length: {len(content)}"]
    return "\r\n".join(["POST / HTTP/1.1", *lines, "", ""]).encode() + content


def sqs(port: int) -> dict[str, bytes]:
    """Return requests of SQS clients, complete or in part."""
    small = sqs_request(port, "SendMessage", QueueUrl="q", MessageBody="x" * 1_000)
    large = sqs_request(port, "SendMessage", QueueUrl="q", MessageBody="x" * 500_000)
    return {
        "silent": b"",
        "part of a head": small[:200],
        "a head": small[: small.index(b"\r\n\r\n") + 4],
        "part of a small body": small[:-9],
        "part of a large body": large[:-9],
        "sent": small,
        "waiting": sqs_request(port, "ReceiveMessage", QueueUrl="empty", WaitTimeSeconds=20),
        "listed": sqs_request(port, "ListQueues"),
        "refused": sqs_request(port, "SendMessage", QueueUrl="nowhere", MessageBody="x"),
        "a wrong signature": small.replace(b"Signature=", b"Signature=0"),
    }


def cut(sock: socket.socket) -> None:
    """End a connection with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
