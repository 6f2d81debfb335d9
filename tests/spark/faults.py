"""A proxy between Spark and the server that kills one or the other at chosen requests.

What dies is real: a worker or driver process of Spark, or the server, by SIGKILL; the server is
started again on its data. The product knows nothing of it.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from onibus.client import Client
from tests.client.server_helpers import ServerProcess, development_string

#: Which requests these are, by their first line.
STAGE, PUBLISH = "stage", "publish"
#: When the victim dies: before the server gets the request, while it works on it, or when it has
#: answered; the answer then reaches nobody.
BEFORE, DURING, AFTER = "before", "during", "after"


class Fault(NamedTuple):
    """Who is killed, at which request, and when."""

    request: str
    moment: str
    #: "client", "server", or a name that the test knows how to kill
    victim: str
    #: so many requests of that kind pass before
    skip: int = 0


class FaultyProxy:
    """Passes requests on, and carries the faults out one after the other."""

    def __init__(
        self, server: ServerProcess, faults: list[Fault], **victims: Callable[[], None]
    ) -> None:
        self._server = server
        self._faults = list(faults)
        self._victims = victims
        self._lock = threading.Lock()
        self._restart = threading.Lock()
        self._random = random.Random(len(faults))
        #: what was killed so far
        self.kills: list[Fault] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connection_string(self) -> str:
        return development_string(self.port)

    @property
    def left(self) -> int:
        """How many faults are still to come."""
        return len(self._faults)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                with socket.create_connection(("127.0.0.1", self._server.port)) as server:
                    while self._pass_on(client, server):
                        continue
            except OSError:
                # The server is down: whoever asks sees a broken connection, and asks again.
                return

    def _pass_on(self, client: socket.socket, server: socket.socket) -> bool:
        request = read_message(client)
        if request is None:
            return False
        fault = self._fault_for(request)
        if fault is not None and fault.moment == BEFORE:
            self._kill(fault, client)
            return False
        server.sendall(request)
        if fault is not None and fault.moment == DURING:
            time.sleep(self._random.random() * 0.02)
            self._kill(fault, client)
            return False
        answer = read_message(server)
        if answer is None:
            return False
        if fault is not None:
            self._kill(fault, client)
            return False
        client.sendall(answer)
        return True

    def _fault_for(self, request: bytes) -> Fault | None:
        kind = kind_of(request)
        with self._lock:
            if not self._faults or self._faults[0].request != kind:
                return None
            if self._faults[0].skip:
                self._faults[0] = self._faults[0]._replace(skip=self._faults[0].skip - 1)
                return None
            return self._faults.pop(0)

    def _kill(self, fault: Fault, client: socket.socket) -> None:
        if fault.victim == "server":
            with self._restart:
                self._server.kill()
                self._server.start()
        elif fault.victim == "client":
            os.kill(process_at(client), signal.SIGKILL)
        else:
            self._victims[fault.victim]()
        self.kills.append(fault)


def kind_of(request: bytes) -> str:
    line = request.split(b"\r\n", 1)[0]
    if re.match(rb"POST /v1/entities/[^/]+/staged/publish ", line):
        return PUBLISH
    return STAGE if re.match(rb"POST /v1/entities/[^/]+/staged\?", line) else ""


def read_message(source: socket.socket) -> bytes | None:
    """Read one whole request or answer; None at the end."""
    content = b""
    while b"\r\n\r\n" not in content:
        piece = source.recv(1 << 16)
        if not piece:
            return None
        content += piece
    head, _, body = content.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    missing = int(found[1]) - len(body) if found else 0
    pieces = [content]
    while missing > 0:
        piece = source.recv(min(missing, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def process_at(connection: socket.socket) -> int:
    """Return the id of the process at the other end of a connection on this machine."""
    here, there = connection.getsockname()[1], connection.getpeername()[1]
    ends = f":{there:04X}", f":{here:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
            link = f"socket:[{fields[9]}]"
            for handle in Path("/proc").glob("[0-9]*/fd/*"):
                try:
                    if os.readlink(handle) == link:
                        return int(handle.parts[2])
                except OSError:
                    continue
    raise AssertionError("nobody is at the other end")


def children_like(group: int, words: str) -> list[int]:
    """Return the processes of a process group whose command line has these words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if words in command and os.getpgid(int(entry.name)) == group:
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def gapless(client: Client, entity: str, numbers: list[int]) -> bool:
    """Tell whether these are all numbers that the entity has given, each once (S2, S3)."""
    ends = client.log_positions(entity)
    wanted = [
        number
        for start, end in zip(ends.earliest, ends.latest, strict=True)
        if start is not None and end is not None
        for number in range(start, end)
    ]
    return sorted(numbers) == wanted
