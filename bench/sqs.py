"""SQS in one run with fauxqs, the fastest self-hosted SQS that was found; it keeps memory only.

Here every request has its signature verified, and every message is on the disk when it is
acknowledged. Both servers are separate processes and get the same bytes over keep-alive
connections, from one client that signs what it can before the clock starts. Rounds alternate, so
that noise hits both alike; the CPU time of each server per message is also reported.

Messages are received until the last one is deleted, and then the clock stops: receivers that wait
for nothing are not counted. There are far more groups than all receivers can hold at once, as the
peer delivers one message of a group at a time, and enough messages that the end of a round does not
matter.

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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import httptools
import msgspec
import psutil
import uvloop

from bench.measure import BODY_BYTES, Figure, folder, median
from bench.served import served

PEER = "fauxqs@1.9.2"
CONNECTIONS = (8, 64)
SENDS = 4_000
BATCH = 10
#: Sent and then received with much waiting; with fewer, their end would count.
SENDS_MIN = 2_000
#: Sent in batches, then received; a quick run has not much less, or the end of it would count.
BATCHED = 12_000
BATCHED_MIN = 6_000
WAITING = 100_000
#: Groups of a standard queue, each with one message waiting; both are compared (B10).
GROUPS = 100_000
GROUP_SIZE = 4

_numbers = count(1)
_decode = msgspec.json.decode


# Servers


class Server:
    """A server that runs as a separate process."""

    def __init__(self, endpoint: str, pid: int) -> None:
        self.endpoint = endpoint
        self._process = psutil.Process(pid)

    def computed(self) -> float:
        """Return the seconds that it has computed so far, on all cores."""
        times = self._process.cpu_times()
        return times.user + times.system


@contextmanager
def onibus(data: Path) -> Iterator[Server]:
    """Run our server."""
    with served(data) as server:
        yield Server(server.addresses["sqs"], server.pid)


@contextmanager
def peer(packages: Path) -> Iterator[Server]:
    """Run the peer."""
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
        yield Server(f"http://127.0.0.1:{port}", process.pid)
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
        # The SDKs say this with every request, so no two heads are the same.
        head += f"amz-sdk-invocation-id: {next(_numbers):032x}\r\n"
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


def drive(endpoint: str, callers: list[Next]) -> None:
    """Run callers at once, each on its own connection, until all have ended."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        finished = []
        for following in callers:
            done: asyncio.Future[None] = loop.create_future()
            finished.append(done)
            await loop.create_connection(partial(Caller, following, done), host, int(port))
        await asyncio.gather(*finished)

    uvloop.run(run())


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


# Measurements


@dataclass(frozen=True)
class Speed:
    """How fast messages went."""

    #: messages a second
    rate: float
    #: microseconds that the server computed for a message
    computed: float

    @staticmethod
    def median(speeds: list[Speed]) -> Speed:
        return Speed(median([one.rate for one in speeds]), median([one.computed for one in speeds]))


class Watch:
    """Runs from when it is made until it is stopped."""

    def __init__(self, server: Server, messages: int) -> None:
        self._server = server
        self._messages = messages
        self._computed = server.computed()
        self._begun = time.perf_counter()

    def stop(self) -> Speed:
        """Return the rate and the CPU time per message since the start."""
        seconds = time.perf_counter() - self._begun
        computed = self._server.computed() - self._computed
        return Speed(self._messages / seconds, computed / self._messages * 1e6)


class Bench:
    """One server, with its own queues."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._signer = Signer(server.endpoint)
        self._body = "x" * BODY_BYTES

    def queue(self) -> str:
        given = {"QueueName": f"q{next(_numbers)}.fifo", "Attributes": {"FifoQueue": "true"}}
        url: str = ask(self._server.endpoint, "CreateQueue", **given)["QueueUrl"]
        return url

    def standard_queue(self) -> str:
        given = {"QueueName": f"q{next(_numbers)}"}
        url: str = ask(self._server.endpoint, "CreateQueue", **given)["QueueUrl"]
        return url

    def tenants(self, groups: int) -> Iterator[dict[str, str]]:
        """Yield messages for a standard queue, of groups in turn; without a group if 0."""
        for n in count():
            group = {"MessageGroupId": f"tenant-{n % groups}"} if groups else {}
            yield {"MessageBody": self._body, **group}

    def entries(self, how_many: int) -> Iterator[dict[str, str]]:
        """Yield messages; those of a group are far apart."""
        groups = how_many // GROUP_SIZE
        for n in range(how_many):
            yield {
                "MessageBody": self._body,
                "MessageGroupId": f"g{n % groups}",
                "MessageDeduplicationId": f"d{next(_numbers)}",
            }

    def sends(self, url: str, how_many: int, connections: int) -> Speed:
        """Send single messages."""
        request = self._signer.request
        requests = [
            request("SendMessage", {"QueueUrl": url, **entry}) for entry in self.entries(how_many)
        ]
        return self._drive(requests, how_many, connections)

    def batches(
        self,
        url: str,
        how_many: int,
        connections: int,
        entries: Iterator[dict[str, str]] | None = None,
    ) -> Speed:
        """Send messages in batches of ten."""
        requests = []
        entries = entries or self.entries(how_many)
        for _ in range(how_many // BATCH):
            batch = [{"Id": f"e{n}", **next(entries)} for n in range(BATCH)]
            given = {"QueueUrl": url, "Entries": batch}
            requests.append(self._signer.request("SendMessageBatch", given))
        return self._drive(requests, how_many, connections)

    def _drive(self, requests: list[bytes], messages: int, connections: int) -> Speed:
        watch = Watch(self._server, messages)
        drive(self._server.endpoint, dealt(requests, connections))
        return watch.stop()

    def receives(self, url: str, how_many: int, connections: int) -> Speed:
        """Receive and delete ten at a time, until `how_many` are deleted."""
        received = gone = 0
        found: list[Speed] = []
        request = self._signer.request
        wanted = {"QueueUrl": url, "MaxNumberOfMessages": BATCH, "WaitTimeSeconds": 1}

        def caller() -> Next:
            handles: list[str] = []

            def following(answer: bytes | None) -> bytes | None:
                nonlocal received, gone
                if handles:
                    result = _decode(answer or b"{}")
                    assert len(result["Successful"]) == len(handles), result
                    if gone < how_many <= gone + len(handles):
                        found.append(watch.stop())
                    gone += len(handles)
                    handles.clear()
                elif answer is not None:
                    messages = _decode(answer or b"{}").get("Messages", ())
                    handles.extend(message["ReceiptHandle"] for message in messages)
                    received += len(handles)
                if handles:
                    entries = [
                        {"Id": f"e{n}", "ReceiptHandle": one} for n, one in enumerate(handles)
                    ]
                    return request("DeleteMessageBatch", {"QueueUrl": url, "Entries": entries})
                return None if received >= how_many else request("ReceiveMessage", wanted)

            return following

        watch = Watch(self._server, how_many)
        drive(self._server.endpoint, [caller() for _ in range(connections)])
        return found[0]


def measure(rounds: int, share: float = 1.0) -> list[Figure]:
    """Return the figures: ratios to the peer, and to ourselves with nothing waiting."""
    packages = packages_of_peer()
    with folder() as data, onibus(data) as ours:
        own = Bench(ours)
        if packages is None:
            told = [Figure("SQS: the peer", 0, 1, "", note=f"{PEER} cannot be installed here")]
            return told + _waiting(own, rounds, share) + fairness(own, rounds, share)
        with peer(packages) as theirs:
            against = _against(own, Bench(theirs), rounds, share)
        return against + _waiting(own, rounds, share) + fairness(own, rounds, share)


def _against(own: Bench, other: Bench, rounds: int, share: float) -> list[Figure]:
    speeds: dict[str, dict[str, list[Speed]]] = {}
    sends, batched = int(SENDS * share), max(int(BATCHED * share), BATCHED_MIN)
    for _ in range(rounds):
        for name, bench in (("own", own), ("other", other)):
            for connections in CONNECTIONS:
                singles, batches = bench.queue(), bench.queue()
                found = {
                    "SendMessage": bench.sends(singles, sends, connections),
                    "SendMessageBatch of 10": bench.batches(batches, batched, connections),
                    "receive 10 + delete": bench.receives(batches, batched, connections),
                }
                for what, speed in found.items():
                    title = f"SQS: {what}, {connections} connections"
                    speeds.setdefault(title, {}).setdefault(name, []).append(speed)
    figures = []
    for title, by_server in speeds.items():
        mine, theirs = Speed.median(by_server["own"]), Speed.median(by_server["other"])
        note = (
            f"{mine.rate:,.0f}/s here, durable and verified, {mine.computed:,.0f} µs each; "
            f"{theirs.rate:,.0f}/s fauxqs, in memory, {theirs.computed:,.0f} µs"
        )
        figures.append(Figure(title, mine.rate / theirs.rate, 1.0, "× fauxqs", note=note))
    return figures


def _waiting(own: Bench, rounds: int, share: float) -> list[Figure]:
    """Compare sends, and receives, with much waiting and with nothing."""
    sends, waiting = max(int(SENDS * share), SENDS_MIN), int(WAITING * share)
    full = own.queue()
    own.batches(full, waiting, 8)
    speeds: dict[str, list[Speed]] = {"full": [], "empty": [], "full out": [], "empty out": []}
    for _ in range(rounds):
        empty = own.queue()
        speeds["empty"].append(own.sends(empty, sends, 8))
        speeds["full"].append(own.sends(full, sends, 8))
        speeds["empty out"].append(own.receives(empty, sends, 8))
        speeds["full out"].append(own.receives(full, sends, 8))
    middle = {name: Speed.median(some) for name, some in speeds.items()}
    return [
        Figure(
            f"SQS: {what} with {waiting:,} messages waiting, against none",
            100 * middle[name].rate / middle[f"empty{suffix}"].rate,
            90,
            "%",
            note=f"{middle[name].rate:,.0f}/s, {middle[name].computed:,.0f} µs each; "
            f"{middle[f'empty{suffix}'].computed:,.0f} µs with none",
        )
        for what, name, suffix in (
            ("SendMessage", "full", ""),
            ("receive 10 + delete", "full out", " out"),
        )
    ]


def fairness(own: Bench, rounds: int, share: float) -> list[Figure]:
    """Compare a standard queue with many groups to one without groups (B10).

    Each has as many messages waiting as there are groups. Rounds take turns.
    """
    groups, moved = int(GROUPS * share), max(int(BATCHED * share), BATCHED_MIN)
    entries = {"groups": own.tenants(groups), "none": own.tenants(0)}
    urls = {name: own.standard_queue() for name in entries}
    for name, url in urls.items():
        own.batches(url, groups, 8, entries[name])
    speeds: dict[tuple[str, str], list[Speed]] = {}
    for at in range(rounds):
        for name in sorted(urls, reverse=bool(at % 2)):
            sent = own.batches(urls[name], moved, 64, entries[name])
            speeds.setdefault(("SendMessageBatch of 10", name), []).append(sent)
            received = own.receives(urls[name], moved, 64)
            speeds.setdefault(("receive 10 + delete", name), []).append(received)
    figures = []
    for what in ("SendMessageBatch of 10", "receive 10 + delete"):
        some, none = Speed.median(speeds[what, "groups"]), Speed.median(speeds[what, "none"])
        note = (
            f"{some.rate:,.0f}/s, {some.computed:,.0f} µs each; "
            f"{none.rate:,.0f}/s and {none.computed:,.0f} µs without groups"
        )
        title = f"SQS: {what}, fair queue of {groups:,} groups, against none"
        figures.append(Figure(title, 100 * some.rate / none.rate, 90, "%", note=note))
    return figures
