"""A proxy that passes everything on, and loses exactly one answer."""

from __future__ import annotations

import socket
import threading
from typing import Any, Self


class LossyProxy:
    """Stands between client and server; the first answer to that action reaches nobody."""

    def __init__(self, port: int, action: str) -> None:
        self._server_port = port
        self._action = action.encode()
        self.dropped = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
                while self._pass_on(client, server):
                    continue

    def _pass_on(self, client: socket.socket, server: socket.socket) -> bool:
        request = _read(client)
        if not request:
            return False
        server.sendall(request)
        answer = _read(server)
        if self._action in request and not self.dropped:
            self.dropped += 1
            return False
        client.sendall(answer)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        # Closing alone does not wake whoever waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def _read(side: socket.socket) -> bytes:
    """Read one whole request or answer, whose length its head tells."""
    data = b""
    while True:
        head, end, body = data.partition(b"\r\n\r\n")
        if end:
            lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
            length = [int(value) for name, _, value in lines if name == b"content-length"]
            if len(body) >= (length[0] if length else 0):
                return data
        some = side.recv(65_536)
        if not some:
            return b""
        data += some
