"""Real requests through a running server: the files that each enters, and the moves between them.

    python -m tools.walk                    print every request, one line per file
    python -m tools.walk --summary          print the counts only
    python -m tools.walk AMQP send          print the requests whose name has these words
    python -m tools.walk --page             write the tables of docs/message-path.md

The server runs in a thread of this process, with SQLite files, and clients send to it over sockets:
azure-servicebus, boto3 and the native client. A profiler notes each call of a function in another
file of `onibus/`; such a call is a *move*. Each request is sent several times before, so that
caches are warm, and then traced several times: the trace with the fewest moves is shown, because
timers of the server may run during a trace.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import onibus
from onibus import Bus
from onibus.client import Client
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME, Keyring
from onibus.server.server import Server

PACKAGE = Path(onibus.__file__).resolve().parent
#: Requests before the first trace, and traces.
WARM_UP, TRACES = 3, 9
#: A server is quiet when no file was entered for this long.
_QUIET_S = 0.15
_QUEUE = "walked"

#: The page with the tables, and what surrounds each.
PAGE = Path(onibus.__file__).resolve().parents[1] / "docs" / "message-path.md"
TABLE = re.compile(r"(<!-- walk (?P<name>[^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
#: The name of the table with one row per request.
COUNTS = "counts"


@dataclass
class Walk:
    """The path of one request."""

    moves: int = 0
    #: each file, in the order in which it was entered first, and the function that was called
    files: dict[str, CodeType] = field(default_factory=dict)


class Walker:
    """A profiler of all threads that the server starts."""

    def __init__(self) -> None:
        self._names: dict[str, str | None] = {}
        self._walk: Walk | None = None
        self.last_move = 0.0

    def start(self) -> Walk:
        self._walk = walk = Walk()
        return walk

    def stop(self) -> None:
        self._walk = None

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call whose caller is in a different file."""
        if event != "call":
            return
        entered = self._file(frame)
        if entered is None or entered == self._caller(frame):
            return
        self.last_move = time.monotonic()
        walk = self._walk
        if walk is not None:
            walk.moves += 1
            walk.files.setdefault(entered, frame.f_code)

    def _caller(self, frame: FrameType) -> str | None:
        """Return the file of the nearest caller in the package."""
        back = frame.f_back
        while back is not None:
            if (name := self._file(back)) is not None:
                return name
            back = back.f_back
        return None

    def _file(self, frame: FrameType) -> str | None:
        filename = frame.f_code.co_filename
        if filename not in self._names:
            path = Path(filename)
            inside = path.is_absolute() and path.is_relative_to(PACKAGE)
            self._names[filename] = str(path.relative_to(PACKAGE)) if inside else None
        return self._names[filename]


class Served:
    """A server on a thread, with an event loop that the profiler sees."""

    def __init__(self, directory: Path, walker: Walker) -> None:
        self._directory = directory
        self._ready = threading.Event()
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self.ports: dict[str, int] = {}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        # Also for the threads of the stores, which start when they are needed first.
        threading.setprofile(walker.profile)
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        bus = await Bus.open(self._directory)
        await bus.create_queue(_QUEUE)
        keys = Keyring(development=True)
        async with Server(bus, keys, http_port=0, amqp_port=0, sqs_port=0) as server:
            assert server.amqp_port is not None
            assert server.sqs_port is not None
            self.ports = {
                "http": server.http_port,
                "amqp": server.amqp_port,
                "sqs": server.sqs_port,
            }
            self._ready.set()
            await self._stop.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        threading.setprofile(None)


@contextmanager
def served(walker: Walker) -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as directory:
        server = Served(Path(directory), walker)
        try:
            yield server
        finally:
            server.stop()


@dataclass(frozen=True)
class Request:
    """A request to trace, and calls to make before and after it."""

    name: str
    send: Callable[[], Any]
    before: Callable[[], Any] = lambda: None
    after: Callable[[], Any] = lambda: None


def requests(ports: dict[str, int], stack: ExitStack) -> list[Request]:
    """Return the requests of all clients, each with an open connection."""
    address = f"http://127.0.0.1:{ports['http']}"
    client = stack.enter_context(Client.connect(address, key_name=ROOT_NAME, key=DEVELOPMENT_KEY))
    return [
        *_amqp(ports["amqp"], stack),
        *_sqs(ports["sqs"]),
        *_native(client),
    ]


def _amqp(port: int, stack: ExitStack) -> list[Request]:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    text = (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={ROOT_NAME};"
        f"SharedAccessKey={DEVELOPMENT_KEY};UseDevelopmentEmulator=true;"
    )
    bus = stack.enter_context(ServiceBusClient.from_connection_string(text))
    sender = stack.enter_context(bus.get_queue_sender(_QUEUE))
    receiver = stack.enter_context(bus.get_queue_receiver(_QUEUE))

    def send() -> None:
        sender.send_messages(ServiceBusMessage(b"x" * 1_000))

    def receive() -> None:
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        receiver.complete_message(message)

    return [
        Request("AMQP send", send, after=receive),
        Request("AMQP receive and complete", receive, before=send),
    ]


def _sqs(port: int) -> list[Request]:
    import boto3
    from botocore.config import Config

    sqs = boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=ROOT_NAME,
        aws_secret_access_key=DEVELOPMENT_KEY,
        config=Config(retries={"max_attempts": 0}, proxies={}),
    )
    url = sqs.create_queue(QueueName="walked-too")["QueueUrl"]

    def send() -> None:
        sqs.send_message(QueueUrl=url, MessageBody="x" * 1_000)

    def receive() -> None:
        (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    return [
        Request("SQS SendMessage", send, after=receive),
        Request("SQS ReceiveMessage and DeleteMessage", receive, before=send),
    ]


def _native(client: Client) -> list[Request]:
    from onibus import Message

    def send() -> None:
        client.send(_QUEUE, Message(body=b"x" * 1_000))

    def receive() -> None:
        receiver = client.receiver(_QUEUE)
        for message in receiver.receive(wait_ms=5_000):
            receiver.complete(message)

    def claim() -> None:
        claimed = client.claim(_QUEUE, "walker", limit=10)
        assert claimed is not None
        client.read_claim_arrow(_QUEUE, "walker", claimed.number)
        client.commit_claim(_QUEUE, "walker", claimed.number)

    return [
        Request("native HTTP send", send, after=receive),
        Request("Spark claim: make, read and commit", claim, before=send),
    ]


def walk(walker: Walker, request: Request) -> Walk:
    """Send a request until caches are warm, then trace it; return the shortest trace."""
    found: list[Walk] = []
    for turn in range(WARM_UP + TRACES):
        request.before()
        _settle(walker)
        walked = walker.start()
        request.send()
        _settle(walker)
        walker.stop()
        request.after()
        if turn >= WARM_UP:
            found.append(walked)
    return min(found, key=lambda one: one.moves)


def _settle(walker: Walker) -> None:
    """Wait until the server has been quiet for a while."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        time.sleep(_QUIET_S / 10)
        if time.monotonic() - walker.last_move > _QUIET_S:
            return


def described(name: str, walked: Walk) -> list[str]:
    """Return the lines of a trace: one per file, with the first sentence of what was called."""
    lines = [f"{name}: {len(walked.files)} files, {walked.moves} moves"]
    for number, (file, code) in enumerate(walked.files.items(), 1):
        lines.append(f"  {number:3} {file:45} {code.co_qualname}: {_sentence(code)}".rstrip(": "))
    return lines


def page_with(text: str, walks: dict[str, Walk]) -> str:
    """Return a page with its tables replaced."""

    def table(found: re.Match[str]) -> str:
        name = found["name"]
        lines = _counts(walks) if name == COUNTS else _steps(walks[name])
        return found[1] + "\n".join(["", *lines, "", found[3]])

    return TABLE.sub(table, text)


def _counts(walks: dict[str, Walk]) -> list[str]:
    rows = [f"| {name} | {len(one.files)} | {one.moves} |" for name, one in walks.items()]
    return ["| request | files | moves |", "| --- | --- | --- |", *rows]


def _steps(walked: Walk) -> list[str]:
    lines = ["| step | file | called first | what it does |", "| --- | --- | --- | --- |"]
    for number, (file, code) in enumerate(walked.files.items(), 1):
        called, says = code.co_qualname.replace(".<locals>", ""), _sentence(code)
        cells = [str(number), f"`{file}`", f"`{called}`", says]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return lines


def _sentence(code: CodeType) -> str:
    """Return the first line of a function's docstring, or nothing."""
    return _docstrings(code.co_filename).get((code.co_name, code.co_firstlineno), "")


@cache
def _docstrings(filename: str) -> dict[tuple[str, int], str]:
    """Return the first line of each docstring of a file, by name and line of its function."""
    found = {}
    for node in ast.walk(ast.parse(Path(filename).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name, first] = (ast.get_docstring(node) or "").partition("\n")[0]
    return found


def main() -> None:
    """Trace the requests, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", help="words of a request's name")
    parser.add_argument("--summary", action="store_true", help="print the counts only")
    parser.add_argument("--page", action="store_true", help=f"write the tables of {PAGE.name}")
    given = parser.parse_args()
    walker, walks = Walker(), {}
    with served(walker) as server, ExitStack() as stack:
        for request in requests(server.ports, stack):
            if " ".join(given.name) in request.name:
                walked = walks[request.name] = walk(walker, request)
                lines = described(request.name, walked)
                print("\n".join(lines[:1] if given.summary else [*lines, ""]), flush=True)
    if given.page:
        PAGE.write_text(page_with(PAGE.read_text(), walks))


if __name__ == "__main__":
    main()
