"""boto3 over TLS, with answers that are large: what it asks next is still read as it was sent."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from onibus import Bus
from onibus.server import tls
from onibus.server.server import Server
from tests.bus_helpers import run
from tests.server.processes import served
from tests.sqs.clients import bodies, client_of, delete, get, new_fifo, put


def test_requests_after_a_large_answer_are_read_whole(tmp_path: Path) -> None:
    certificate, key = tls.self_made(tmp_path, "127.0.0.1")
    options = ("--tls-certificate", certificate, "--tls-key", key, "--log-level", "warning")
    with served("--data", tmp_path / "data", *options) as server:
        sqs = client_of(server.ready["sqs"], verify=str(certificate))
        url = new_fifo(sqs)
        assert url.startswith("https://")
        for n in range(10):
            put(sqs, url, f"{n}" * 20_000)
        # A head and a body, each in a piece of its own; the body may look like a request.
        request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
        for round_ in range(5):
            # A group that is visible again comes behind the other one (F10).
            received = bodies(get(sqs, url, VisibilityTimeout=0))
            others = [body for body in received if body == request]
            assert len(others) <= round_
            in_order = [f"{n}" * 20_000 for n in range(10 - len(others))]
            assert [body for body in received if body != request] == in_order
            put(sqs, url, request, "other")
        delete(sqs, url, *get(sqs, url))
        assert len(get(sqs, url)) == 5


def ask(connection: ssl.SSLSocket, action: str, body: bytes) -> tuple[int, Any]:
    """Ask as clients do that send a head, and then its body; return status and answer."""
    lines = ("POST / HTTP/1.1", "Host: localhost", f"X-Amz-Target: AmazonSQS.{action}")
    head = "\r\n".join((*lines, f"Content-Length: {len(body)}", "", ""))
    connection.sendall(head.encode())
    time.sleep(0.05)
    connection.sendall(body)
    response = HTTPResponse(connection)
    response.begin()
    return response.status, json.loads(response.read())


def converse(connection: ssl.SSLSocket) -> None:
    _, made = ask(connection, "CreateQueue", b'{"QueueName": "q"}')
    message = {"QueueUrl": made["QueueUrl"], "MessageBody": "x" * 100_000}
    assert ask(connection, "SendMessage", json.dumps(message).encode())[0] == 200
    queue = json.dumps({"QueueUrl": made["QueueUrl"], "VisibilityTimeout": 0}).encode()
    _, received = ask(connection, "ReceiveMessage", queue)
    assert received["Messages"][0]["Body"] == "x" * 100_000
    smuggled = b"POST /?Action=CreateQueue&QueueName=smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
    status, told = ask(connection, "ListQueues", smuggled)
    assert (status, "cannot be read" in told["message"]) == (400, True)
    assert ask(connection, "ListQueues", b"{}") == (200, {"QueueUrls": [made["QueueUrl"]]})


@run
async def test_a_body_that_comes_later_is_not_read_as_a_request(tmp_path: Path) -> None:
    certificate, key = tls.self_made(tmp_path, "127.0.0.1")
    ours, theirs = tls.context(certificate, key), ssl.create_default_context(cafile=certificate)
    server = Server(await Bus.ephemeral(), None, http_port=0, sqs_port=0, tls=ours)
    await server.start()

    def connect() -> None:
        plain = socket.create_connection(("127.0.0.1", server.sqs_port))
        with theirs.wrap_socket(plain, server_hostname="127.0.0.1") as safe:
            converse(safe)

    try:
        await asyncio.to_thread(connect)
    finally:
        await server.stop()
