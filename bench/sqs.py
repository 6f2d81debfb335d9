"""SQS in one run with fauxqs, the fastest self-hosted SQS that was found; it keeps memory only.

Here every request has its signature verified, and every message is on the disk when it is
acknowledged. Both servers are processes of their own and get the same bytes over keep-alive
connections, from one client that signs what it can before the clock starts. Rounds alternate, so
that noise hits both alike.

python -m bench sqs
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import httptools
import msgspec
import uvloop

from bench.measure import BODY_BYTES, Figure, folder, median

PEER = "fauxqs@1.9.2"
CONNECTIONS = (8, 64)
SENDS = 4_000
BATCHES = 600
BATCH = 10
WAITING = 100_000
GROUPS = 500

_numbers = count(1)
_decode = msgspec.json.decode


# Servers


@contextmanager
def onibus(data: Path) -> Iterator[str]:
    """Run our server; yield its endpoint."""
    command = [sys.executable, "-m", "onibus", "serve", "--data", str(data), "--json"]
    command += ["--http-port", "0", "--amqp-port", "0", "--sqs-port", "0", "--reserve-bytes", "0"]
    process = subprocess.Popen(
        [*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["sqs"]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def peer(packages: Path) -> Iterator[str]:
    """Run the peer; yield its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"FAUXQS_PORT": str(port), "FAUXQS_LOGGER": "false"}
    program = packages / "node_modules" / "fauxqs" / "dist" / "cli.js"
    process = subprocess.Popen(
        ["node", str(program)], env=os.environ | variables, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def packages_of_peer() -> Path | None:
    """Install the peer into the user's cache directory; None where that cannot be."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "onibus" / "npm" / PEER
    if not (place / "node_modules" / "fauxqs").exists():
        place.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), PEER]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
    return place


# A client that costs little


class Signer:
    """Makes whole requests, signed, for one server."""

    def __init__(self, endpoint: str) -> None:
        self.host = endpoint.removeprefix("http://")
        self._day = time.strftime("%Y%m%d", time.gmtime())
        key = b"AWS4test"
        for part in (self._day, "us-east-1", "sqs", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._key = key

    def request(self, action: str, given: dict[str, Any]) -> bytes:
        body = json.dumps(given).encode()
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{self._day}/us-east-1/sqs/aws4_request"
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "host": self.host,
            "x-amz-date": date,
            "x-amz-target": f"AmazonSQS.{action}",
        }
        names = ";".join(headers)
        lines = "\n".join(f"{name}:{value}" for name, value in headers.items())
        canonical = f"POST\n/\n\n{lines}\n\n{names}\n{sha256(body).hexdigest()}"
        hashed = sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashed}".encode()
        signature = hmac.digest(self._key, text, "sha256").hex()
        authorization = (
            f"AWS4-HMAC-SHA256 Credential=test/{scope}, SignedHeaders={names}, "
            f"Signature={signature}"
        )
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return (
            f"POST / HTTP/1.1\r\n{head}authorization: {authorization}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode() + body


#: Returns the next request, given the answer to the last one; None at the end.
Next = Callable[[bytes | None], bytes | None]


class Caller(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, following: Next, done: asyncio.Future[None]) -> None:
        self._following = following
        self._done = done
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask(None)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status, body = self._parser.get_status_code(), self._body
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)
        if status != 200:
            self._done.set_exception(RuntimeError(f"{status}: {body[:500]!r}"))
            self._transport.close()
            return
        self._ask(body)

    def _ask(self, answer: bytes | None) -> None:
        request = self._following(answer)
        if request is None:
            self._transport.close()
            if not self._done.done():
                self._done.set_result(None)
        else:
            self._transport.write(request)


def drive(endpoint: str, callers: list[Next]) -> float:
    """Run callers at once, each on a connection of its own; return the seconds."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        begun = time.perf_counter()
        finished = []
        for following in callers:
            done: asyncio.Future[None] = loop.create_future()
            finished.append(done)
            await loop.create_connection(partial(Caller, following, done), host, int(port))
        await asyncio.gather(*finished)
        return time.perf_counter() - begun

    return uvloop.run(run())


def ask(endpoint: str, action: str, **given: Any) -> Any:
    """Ask once; return the answer."""
    found: list[bytes] = []

    def following(answer: bytes | None) -> bytes | None:
        if answer is None:
            return Signer(endpoint).request(action, given)
        found.append(answer)
        return None

    drive(endpoint, [following])
    return _decode(found[0] or b"{}")


def dealt(requests: list[bytes], connections: int) -> list[Next]:
    """Deal requests that are ready over connections."""
    left = iter(requests)
    return [lambda answer: next(left, None)] * connections


# What is measured


class Bench:
    """One server, with a queue of its own for each measurement."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._signer = Signer(endpoint)
        self._body = "x" * BODY_BYTES

    def queue(self) -> str:
        given = {"QueueName": f"q{next(_numbers)}.fifo", "Attributes": {"FifoQueue": "true"}}
        url: str = ask(self.endpoint, "CreateQueue", **given)["QueueUrl"]
        return url

    def entry(self) -> dict[str, str]:
        n = next(_numbers)
        return {
            "MessageBody": self._body,
            "MessageGroupId": f"g{n % GROUPS}",
            "MessageDeduplicationId": f"d{n}",
        }

    def sends(self, url: str, how_many: int, connections: int) -> float:
        """Send single messages; return messages a second."""
        request = self._signer.request
        requests = [
            request("SendMessage", {"QueueUrl": url, **self.entry()}) for _ in range(how_many)
        ]
        return how_many / drive(self.endpoint, dealt(requests, connections))

    def batches(self, url: str, how_many: int, connections: int) -> float:
        """Send batches of ten; return messages a second."""
        requests = []
        for _ in range(how_many):
            entries = [{"Id": f"e{n}", **self.entry()} for n in range(BATCH)]
            given = {"QueueUrl": url, "Entries": entries}
            requests.append(self._signer.request("SendMessageBatch", given))
        return how_many * BATCH / drive(self.endpoint, dealt(requests, connections))

    def receives(self, url: str, how_many: int, connections: int) -> float:
        """Receive ten and delete them, until so many are gone; return messages a second."""
        gone = 0
        request = self._signer.request
        wanted = {"QueueUrl": url, "MaxNumberOfMessages": BATCH, "WaitTimeSeconds": 1}

        def caller() -> Next:
            handles: list[str] = []

            def following(answer: bytes | None) -> bytes | None:
                nonlocal gone
                if handles:
                    gone += len(handles)
                    handles.clear()
                elif answer is not None:
                    messages = _decode(answer or b"{}").get("Messages", ())
                    handles.extend(message["ReceiptHandle"] for message in messages)
                if handles:
                    entries = [
                        {"Id": f"e{n}", "ReceiptHandle": one} for n, one in enumerate(handles)
                    ]
                    return request("DeleteMessageBatch", {"QueueUrl": url, "Entries": entries})
                if gone >= how_many:
                    return None
                return request("ReceiveMessage", wanted)

            return following

        seconds = drive(self.endpoint, [caller() for _ in range(connections)])
        return gone / seconds


def measure(rounds: int, share: float = 1.0) -> list[Figure]:
    """Return the figures: ratios to the peer, and to ourselves with nothing waiting."""
    packages = packages_of_peer()
    with folder() as data, onibus(data) as ours:
        own = Bench(ours)
        if packages is None:
            told = [Figure("SQS: the peer", 0, 1, "", note=f"{PEER} cannot be installed here")]
            return told + _waiting(own, rounds, share)
        with peer(packages) as theirs:
            return _against(own, Bench(theirs), rounds, share) + _waiting(own, rounds, share)


def _against(own: Bench, other: Bench, rounds: int, share: float) -> list[Figure]:
    rates: dict[str, dict[str, list[float]]] = {}
    sends, batches = int(SENDS * share), int(BATCHES * share)
    for _ in range(rounds):
        for name, bench in (("own", own), ("other", other)):
            for connections in CONNECTIONS:
                url = bench.queue()
                found = {
                    f"SQS: SendMessage, {connections} connections": bench.sends(
                        url, sends, connections
                    ),
                    f"SQS: SendMessageBatch of 10, {connections} connections": bench.batches(
                        url, batches, connections
                    ),
                    f"SQS: receive 10 + delete, {connections} connections": bench.receives(
                        url, sends, connections
                    ),
                }
                for what, rate in found.items():
                    rates.setdefault(what, {}).setdefault(name, []).append(rate)
    figures = []
    for what, by_server in rates.items():
        mine, theirs = median(by_server["own"]), median(by_server["other"])
        note = f"{mine:,.0f}/s here, durable and verified; {theirs:,.0f}/s fauxqs, in memory"
        figures.append(Figure(what, mine / theirs, 1.0, "× fauxqs", note=note))
    return figures


def _waiting(own: Bench, rounds: int, share: float) -> list[Figure]:
    """Compare sends, and receives, with much waiting and with nothing."""
    sends, waiting = int(SENDS * share), int(WAITING * share)
    full = own.queue()
    own.batches(full, waiting // BATCH, 8)
    rates: dict[str, list[float]] = {"full": [], "empty": [], "full out": [], "empty out": []}
    for _ in range(rounds):
        empty = own.queue()
        rates["empty"].append(own.sends(empty, sends, 8))
        rates["full"].append(own.sends(full, sends, 8))
        rates["empty out"].append(own.receives(empty, sends, 8))
        rates["full out"].append(own.receives(full, sends, 8))
    return [
        Figure(
            f"SQS: {what} with {waiting:,} messages waiting, against none",
            100 * median(rates[name]) / median(rates[f"empty{suffix}"]),
            90,
            "%",
            note=f"{median(rates[name]):,.0f}/s",
        )
        for what, name, suffix in (
            ("SendMessage", "full", ""),
            ("receive 10 + delete", "full out", " out"),
        )
    ]
