"""Load over HTTP from a separate process: raw sockets, a script for each connection.

A script yields requests and gets the body of each response. The load parses only the length of a
response, so that it costs less than any server.

python -m bench.load <port> <script> <count> <target> <authorization>
"""

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from bench.measure import BODY_BYTES

CONNECTIONS = 64
#: Messages of one request, where they are sent or received together.
TOGETHER = 100
#: Bodies have this many lengths around 1 KB: no real client always sends the same length.
LENGTHS = 33
#: The buffer of all reads: new memory for each response would cost more than reading it.
_place = memoryview(bytearray(256 << 10))

Script = Generator[bytes, bytes, None]
_GOOD = (b"HTTP/1.1 200 ", b"HTTP/1.1 204 ")
_LENGTH = re.compile(rb"content-length: (\d+)\r\n")
_TOKEN = re.compile(rb'"token":"([0-9a-f]{32})"')


@dataclass(frozen=True)
class Load:
    """How long it took, and what it cost the process that made it."""

    seconds: float
    cpu_seconds: float


def load(port: int, script: str, count: int, target: str, authorization: str) -> Load:
    """Run a script over all connections, in a separate process."""
    command = [sys.executable, "-m", "bench.load", str(port), script, str(count)]
    done = subprocess.run(
        [*command, target, authorization], check=True, capture_output=True, text=True, timeout=600
    )
    return Load(**json.loads(done.stdout))


class Requests:
    """Requests to one queue, each of them bytes that are sent as they are."""

    def __init__(self, target: str, authorization: str) -> None:
        self._target = target
        self._authorization = authorization
        self._begun = time.time_ns()

    def post(self, call: str, body: bytes) -> bytes:
        """Return a whole request."""
        head = (
            f"POST {self._target}/{call} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: application/json\r\nauthorization: {self._authorization}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def message(self, number: int) -> bytes:
        """Return a message of 1 KB in JSON, with an id that was never sent before."""
        body = b"x" * (BODY_BYTES - LENGTHS // 2 + number % LENGTHS)
        return b'{"message_id":"%d-%08d","body":"%b"}' % (self._begun, number, body)

    def sending(self) -> Callable[[int], bytes]:
        """Return what makes the request that sends one message."""
        frames = [
            self.post("messages", self.message(length)).split(b"-%08d" % length)
            for length in range(LENGTHS)
        ]

        def make(number: int) -> bytes:
            before, after = frames[number % LENGTHS]
            return b"%b-%08d%b" % (before, number, after)

        return make


def send_singly(requests: Requests, numbers: Iterator[int]) -> Script:
    """Send messages, one in a request."""
    make = requests.sending()
    for number in numbers:
        yield make(number)


def send_together(requests: Requests, numbers: Iterator[int]) -> Script:
    """Send messages, a hundred in a request."""
    for first in numbers:
        if first % TOGETHER == 0:
            some = b",".join([requests.message(first + more) for more in range(TOGETHER)])
            yield requests.post("batch", b'{"messages":[%b]}' % some)


def _receive(requests: Requests, numbers: Iterator[int], limit: int) -> Script:
    receive = requests.post("receive", b'{"limit":%d}' % limit)
    for number in numbers:
        if number % limit == 0:
            tokens = _TOKEN.findall((yield receive))
            if len(tokens) != limit:
                raise SystemExit(f"{len(tokens)} messages of {limit} were received")
            yield requests.post("complete", b'{"tokens":["%b"]}' % b'","'.join(tokens))


def receive_singly(requests: Requests, numbers: Iterator[int]) -> Script:
    """Receive messages and complete them, one by one: two requests a message."""
    return _receive(requests, numbers, 1)


def receive_together(requests: Requests, numbers: Iterator[int]) -> Script:
    """Receive messages and complete them, a hundred at a time."""
    return _receive(requests, numbers, TOGETHER)


SCRIPTS = {
    "send-singly": send_singly,
    "send-together": send_together,
    "receive-singly": receive_singly,
    "receive-together": receive_together,
}


class _Connection:
    """One connection, and the script that it goes through."""

    def __init__(self, port: int, script: Script) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._script = script
        self._read = b""

    def begin(self) -> bool:
        """Send the first request; return whether there is one."""
        try:
            self.socket.sendall(next(self._script))
        except StopIteration:
            return False
        return True

    def readable(self) -> bool:
        """Read, and continue once a response is complete; return whether there is more to do."""
        came = bytes(_place[: self.socket.recv_into(_place)])
        if not came:
            raise SystemExit("the server has closed a connection")
        data = self._read = self._read + came if self._read else came
        if not data.startswith(_GOOD):
            raise SystemExit(f"the server refused: {data[:1_000]!r}")
        head = data.find(b"\r\n\r\n") + 4
        if head < 4:
            return True
        length = _LENGTH.search(data, 0, head)
        if length is not None and len(data) < head + int(length[1]):
            return True
        self._read = b""
        try:
            self.socket.sendall(self._script.send(data[head:]))
        except StopIteration:
            return False
        return True


def run(port: int, script: str, count: int, target: str, authorization: str) -> Load:
    """Go through a script on all connections at once, as many times as there are messages."""
    requests, numbers = Requests(target, authorization), iter(range(count))
    together = [_Connection(port, SCRIPTS[script](requests, numbers)) for _ in range(CONNECTIONS)]
    by_number = {connection.socket.fileno(): connection for connection in together}
    poll = select.epoll()
    started, cpu = time.perf_counter(), time.process_time()
    for number, connection in by_number.items():
        poll.register(number, select.EPOLLIN)
        connection.begin()
    left = len(together)
    while left:
        for number, _ in poll.poll():
            if not by_number[number].readable():
                left -= 1
    return Load(time.perf_counter() - started, time.process_time() - cpu)


if __name__ == "__main__":
    number, name, many, where, credentials = sys.argv[1:]
    print(json.dumps(vars(run(int(number), name, int(many), where, credentials))))
