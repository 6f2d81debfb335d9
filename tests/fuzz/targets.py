"""What inputs are fed to, and what must hold of each: anything that is raised is a defect.

A client gets answers of the protocol that it speaks, never one that says that the server is at
fault, and every answer is well formed.
"""

from __future__ import annotations

import gzip
import json
import zlib
from functools import cache
from itertools import count
from urllib.parse import quote

import pyarrow as pa

from onibus.api.wire import ARROW, NDJSON, PROBLEM
from onibus.protocols.atom.xml import parse
from tests.fuzz.registry import Feed
from tests.fuzz.requests import Request
from tests.fuzz.service import Answer, Service, answers


@cache
def _service() -> Service:
    return Service()


def begin() -> None:
    """Forget what inputs before have done."""
    _service().begin()


def prepare() -> None:
    """Make ready for an input."""
    _service().next()


def http(data: bytes) -> None:
    """A stream to the port of the native API, of management, and of AMQP over WebSocket."""
    said = _service().http(data, strict=_is_strict(data))
    if not data.startswith(b"AMQP"):
        for answer in answers(said, data):
            check(answer)


def sqs(data: bytes) -> None:
    """A stream to the SQS port."""
    for answer in answers(_service().sqs(data, strict=_is_strict(data)), data):
        check(answer)


def _is_strict(data: bytes) -> bool:
    """Return whether the server demands credentials: for some inputs, to cover that code."""
    return zlib.crc32(data) % 8 == 0


def check(answer: Answer) -> None:
    """Nothing is our fault, and what is said can be read."""
    assert answer.status < 500, answer
    kind = answer.headers.get("content-type", "")
    if not answer.body:
        return
    if kind == PROBLEM:
        problem = json.loads(answer.body)
        assert (problem["status"], problem["outcome"]) == (answer.status, "refused"), answer
    elif kind == NDJSON:
        for line in answer.body.splitlines():
            assert not line or json.loads(line)
    elif "json" in kind:
        json.loads(answer.body)
    elif "xml" in kind:
        parse(answer.body)


#: Where rows are sent: to each kind of queue, and staged for them.
_QUEUES = ("q", "p", "s", "f.fifo", "t")
_attempts = count()


def arrow(data: bytes) -> None:
    """The body of a request that sends or stages rows; accepted rows can be read back."""
    chosen = zlib.crc32(data)
    entity = quote(_QUEUES[chosen % len(_QUEUES)])
    attempt = next(_attempts)
    headers = [("host", "localhost"), ("content-type", ARROW)]
    path = f"/v1/entities/{entity}/batch"
    staged = (chosen >> 8) % 3 == 0
    if staged:
        path = f"/v1/entities/{entity}/staged?producer=p&batch={attempt}&task=0&attempt=0"
    if (chosen >> 12) % 16 == 0:
        headers.append(("content-encoding", "gzip"))
        data = gzip.compress(data, 1, mtime=0)
    answer = _ask(Request("POST", path, headers, data))
    if answer.status >= 300:
        return
    if staged:
        published = {"producer": "p", "batch": attempt, "attempts": [[0, 0]]}
        answer = _call("POST", f"/v1/entities/{entity}/staged/publish", published)
        assert answer.status == 200, answer
    _read_back(entity)


def _read_back(entity: str) -> None:
    """Read the log and receive: neither fails because of rows that a client sent."""
    source = "t%2Fsubscriptions%2Fu" if entity == "t" else entity
    if entity not in ("s", "f.fifo"):
        received = _call("POST", f"/v1/entities/{source}/receive", {"limit": 50, "delete": True})
        assert received.status == 200, received
    _call("POST", f"/v1/entities/{source}/peek", {"limit": 5})
    read = _call("GET", f"/v1/entities/{entity}/log/messages/0?start=1&limit=100")
    assert (read.status, read.headers["content-type"]) == (200, ARROW), read
    with pa.ipc.open_stream(read.body) as reader:
        reader.read_all().validate(full=True)


def _call(method: str, path: str, body: object = None) -> Answer:
    content = b"" if body is None else json.dumps(body).encode()
    return _ask(Request(method, path, [("host", "localhost")], content))


def _ask(request: Request) -> Answer:
    [answer] = answers(_service().http(request.bytes()))
    check(answer)
    return answer


TARGETS: dict[str, Feed] = {"http": http, "sqs": sqs, "atom": http, "arrow": arrow}
