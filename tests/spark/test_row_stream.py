"""Rows that are read as they arrive go on where a connection broke, and say what is wrong."""

from __future__ import annotations

import socket
import threading

import pyarrow as pa
import pytest

from onibus.client import Client, Retry, Target, Unreachable
from onibus.core.errors import EntityReplaced, LogGap
from onibus.spark.row_stream import RowStream
from tests.client.server_helpers import ServerProcess, development_string
from tests.spark.reading import fill

PATIENCE_S = 30


class BreakingProxy:
    """Stands before a server, and breaks connections off after so many bytes of an answer."""

    def __init__(self, port: int, breaks: list[int]) -> None:
        self._server_port = port
        self._breaks = breaks
        self.connections = 0
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
            self.connections += 1
            left = self._breaks.pop(0) if self._breaks else 1 << 40
            with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
                server.sendall(client.recv(65_536))
                while left > 0 and (data := server.recv(min(left, 65_536))):
                    client.sendall(data)
                    left -= len(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


def stream(port: int) -> RowStream:
    return RowStream(Target.parse(development_string(port)), None, Retry(4, 1, 10))


@pytest.mark.promise("R3")
def test_a_broken_connection_loses_and_repeats_nothing(
    client: Client, server: ServerProcess, entity: str
) -> None:
    client.create_queue(entity)
    for _ in range(4):
        fill(client, entity, 1_000, body=[bytes(1_000)] * 1_000)
    # Before the head, in the head, in the first batch, and in a later one.
    proxy = BreakingProxy(server.port, [0, 40, 300_000, 1_500_000])
    try:
        path = f"/v1/entities/{entity}/log/messages/0"
        batches = list(stream(proxy.port).rows(path, 1, 4_001, columns="sequence_number,body"))
    finally:
        proxy.close()
    numbers = pa.Table.from_batches(batches).column("sequence_number").to_pylist()
    assert numbers == list(range(1, 4_001))
    assert proxy.connections == 5


def test_what_the_server_refuses_is_told_as_it_is(
    client: Client, server: ServerProcess, entity: str
) -> None:
    client.create_queue(entity)
    fill(client, entity, 3)
    client.receiver(entity, delete=True).receive(3)
    path = f"/v1/entities/{entity}/log/messages/0"
    with pytest.raises(LogGap) as gap:
        list(stream(server.port).rows(path, 1, 4))
    assert (gap.value.first, gap.value.last) == (1, 3)
    with pytest.raises(EntityReplaced):
        list(stream(server.port).rows(path, 1, 4, incarnation=1 << 40))
    with socket.create_server(("127.0.0.1", 0)) as unheard:
        port = unheard.getsockname()[1]
    with pytest.raises(Unreachable):
        list(stream(port).rows(path, 1, 4))
