"""A proxy that stands before a server of HTTP, and cuts connections off in the midst of answers."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Self

_PATIENCE_S = 120


class CuttingProxy:
    """Requests reach the server; their answers reach the client as far as they may.

    `cuts` are bytes of answers, one for each request in turn: after so many of them the connection
    is cut, before the first one where it is 0. When all are used up answers come whole. Where there
    is a `mark` only requests that have it in them count.
    """

    def __init__(self, port: int, cuts: Iterable[int], mark: bytes = b"") -> None:
        self._server_port = port
        self._cuts = list(cuts)
        self._mark = mark
        self.requests = 0
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    @property
    def cuts_left(self) -> int:
        return len(self._cuts)

    def cut_next(self) -> None:
        """Let nobody have the answer to the next request."""
        self._cuts.append(0)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(client)
            thread = threading.Thread(target=self._pass_on, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            address = ("127.0.0.1", self._server_port)
            with socket.create_connection(address) as server:
                self._pump(client, server)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        request, allowed = b"", -1
        with selectors.DefaultSelector() as either:
            either.register(client, selectors.EVENT_READ)
            either.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in either.select():
                    side = client if key.fileobj is client else server
                    data = side.recv(65_536)
                    if not data:
                        return
                    if side is server:
                        client.sendall(data if allowed < 0 else data[:allowed])
                        if 0 <= allowed <= len(data):
                            return
                        allowed = max(allowed - len(data), -1)
                    elif _whole(request := request + data):
                        allowed = self._count(request)
                        server.sendall(request)
                        request = b""

    def _count(self, request: bytes) -> int:
        """Return how many bytes of its answer may come, -1 for all."""
        if self._mark not in request:
            return -1
        self.requests += 1
        return self._cuts.pop(0) if self._cuts else -1

    def close(self) -> None:
        # Closing alone does not wake whoever waits in accept, or for what comes next.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(_PATIENCE_S)
        for client in self._open:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def _whole(request: bytes) -> bool:
    """Tell whether a request has come whole, whose head tells its length."""
    head, end, body = request.partition(b"\r\n\r\n")
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    length = [int(value) for name, _, value in lines if name == b"content-length"]
    return bool(end) and len(body) >= (length[0] if length else 0)
