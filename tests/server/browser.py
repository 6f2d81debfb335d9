"""What a browser sends: requests to every listener, and the headers that tell whose page asks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from onibus.security.sas import make_token
from onibus.server.server import Server
from tests.atom.helpers import body as described
from tests.server.http_helpers import Raw

VERSION = "2012-11-05"
FORM = "application/x-www-form-urlencoded"

#: Headers of requests by pages of other sites; {host} is the address that they ask.
STRANGERS: dict[str, dict[str, str]] = {
    "a script of another site": {
        "origin": "https://evil.example",
        "referer": "https://evil.example/",
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "cors",
    },
    "a script, in a browser that tells no more": {"origin": "https://evil.example"},
    "a sandboxed frame": {"origin": "null"},
    "a page of another port of this machine": {"origin": "http://localhost:8080"},
    "an image": {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "no-cors",
        "sec-fetch-dest": "image",
    },
    "a link that was followed": {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
        "sec-fetch-user": "?1",
    },
    "an image of a page on another port": {"sec-fetch-site": "same-site"},
    "an image, in an old browser": {"referer": "https://evil.example/page"},
    "an image of another port, in an old browser": {"referer": "http://localhost:8080/"},
}

#: Names that were made to lead here (DNS rebinding): the page asks its own server, as it believes.
REBOUND = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.0.7", "a.b")

#: Headers of programs, of an address that a user typed, and of the server's own pages.
OUR_OWN: dict[str, dict[str, str]] = {
    "a program": {},
    "a user who typed the address": {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
    "a page of ours": {
        "origin": "http://{host}",
        "referer": "http://{host}/page",
        "sec-fetch-site": "same-origin",
    },
}


@dataclass
class Asked:
    """One request."""

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def _shown() -> dict[str, str]:
    """Return what any page can show: the well-known key signs in a browser, too."""
    expiry = int(time.time()) + 600
    return {"authorization": make_token("sb://localhost/", ROOT_NAME, DEVELOPMENT_KEY, expiry)}


def _sqs(host: str, method: str, target: str, headers: dict[str, str], body: bytes) -> Asked:
    request = AWSRequest(method, f"http://{host}{target}", data=body, headers=headers)
    SigV4Auth(Credentials("test", "test"), "sqs", "us-east-1").add_auth(request)
    return Asked(method, target, dict(request.headers.items()), body)


def sqs_json(host: str, action: str, given: dict[str, str], method: str = "POST") -> Asked:
    headers = {
        "X-Amz-Target": f"AmazonSQS.{action}",
        "Content-Type": "application/x-amz-json-1.0",
    }
    return _sqs(host, method, "/", headers, json.dumps(given).encode())


def sqs_form(host: str, action: str, given: dict[str, str]) -> Asked:
    body = urlencode({"Action": action, "Version": VERSION, **given}).encode()
    return _sqs(host, "POST", "/", {"Content-Type": FORM}, body)


def sqs_presigned(
    host: str,
    action: str,
    given: dict[str, str],
    method: str = "GET",
    key: tuple[str, str] = ("test", "test"),
) -> Asked:
    text = urlencode({"Action": action, "Version": VERSION, **given})
    request = AWSRequest(method, f"http://{host}/?{text}", data=b"", headers={})
    SigV4QueryAuth(Credentials(*key), "sqs", "us-east-1", expires=60).add_auth(request)
    parts = urlsplit(str(request.url))
    return Asked(method, f"{parts.path}?{parts.query}")


def _queue(host: str, name: str) -> dict[str, str]:
    return {"QueueUrl": f"http://{host}/000000000000/{name}"}


def upgrade() -> Asked:
    return Asked(
        "GET",
        "/$servicebus/websocket",
        {
            "upgrade": "websocket",
            "connection": "Upgrade",
            "sec-websocket-version": "13",
            "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
            "sec-websocket-protocol": "AMQPWSB10",
        },
    )


#: Each: the listener, and the request as it is made for a host. There is a queue `q`.
REQUESTS: dict[str, tuple[str, Callable[[str], Asked]]] = {
    "native: list": ("http", lambda host: Asked("GET", "/v1/queues", _shown())),
    "native: describe": ("http", lambda host: Asked("GET", "/openapi.json")),
    "native: watch": ("http", lambda host: Asked("GET", "/metrics", _shown())),
    "native: send": (
        "http",
        lambda host: Asked("POST", "/v1/entities/q/messages", _shown(), b'{"body": "planted"}'),
    ),
    "native: create": ("http", lambda host: Asked("PUT", "/v1/queues/made", _shown(), b"{}")),
    "management: show": ("http", lambda host: Asked("GET", "/q?api-version=2021-05", _shown())),
    "management: create": (
        "http",
        lambda host: Asked("PUT", "/made?api-version=2021-05", _shown(), described().encode()),
    ),
    "management: delete what is called like a probe": (
        "http",
        lambda host: Asked("DELETE", "/health?api-version=2021-05", _shown()),
    ),
    "SQS: list": ("sqs", lambda host: sqs_json(host, "ListQueues", {})),
    "SQS: send by a form": (
        "sqs",
        lambda host: sqs_form(host, "SendMessage", {**_queue(host, "q"), "MessageBody": "planted"}),
    ),
    "SQS: create": ("sqs", lambda host: sqs_json(host, "CreateQueue", {"QueueName": "made"})),
    "SQS: presigned": ("sqs", lambda host: sqs_presigned(host, "ListQueues", {})),
    "WebSocket": ("http", lambda host: upgrade()),
}


async def ask(server: Server, listener: str, name: str, asked: Asked, **more: str) -> int:
    """Send a request to a listener by a name of its host; return the status of the answer."""
    port = server.http_port if listener == "http" else server.sqs_port
    raw = Raw(*await asyncio.open_connection("127.0.0.1", port))
    host = f"{name}:{port}"
    headers = {"host": host, **asked.headers}
    headers |= {header: value.replace("{host}", host) for header, value in more.items()}
    if asked.body:
        headers["content-length"] = str(len(asked.body))
    lines = [f"{asked.method} {asked.target} HTTP/1.1"]
    lines += [f"{header}: {value}" for header, value in headers.items()]
    await raw.write("\r\n".join((*lines, "", "")).encode() + asked.body)
    status, _, _ = await raw.answer(bodiless=asked.method == "HEAD")
    raw.close()
    return status
