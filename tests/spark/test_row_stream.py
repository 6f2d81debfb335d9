"""Rows that are read as they arrive go on where a connection broke, and say what is wrong."""

from __future__ import annotations

import socket

import pyarrow as pa
import pytest

from onibus.client import Client, Retry, Target, Unreachable
from onibus.core.errors import EntityReplaced, LogGap
from onibus.spark.ranges import ANY, Range
from onibus.spark.row_stream import RowStream
from tests.bus_helpers import KEYS
from tests.client.server_helpers import ServerProcess, development_string
from tests.cutting_proxy import CuttingProxy
from tests.spark.reading import fill


def stream(port: int) -> RowStream:
    return RowStream(Target.parse(development_string(port)), None, Retry(4, 1, 10))


@pytest.mark.promise("R3")
def test_a_broken_connection_loses_and_repeats_nothing(
    client: Client, server: ServerProcess, entity: str
) -> None:
    client.create_queue(entity, enable_partitioning=True)
    for at in range(4):
        keys = [KEYS[at % 2]] * 1_000
        fill(client, entity, 1_000, body=[bytes(1_000)] * 1_000, partition_key=keys)
    ends = client.log_positions(entity)
    both = zip(ends.earliest, ends.latest, strict=True)
    ranges = [
        Range(at, start or 0, end or 0, ends.incarnation)
        for at, (start, end) in enumerate(both)
        if start != end
    ]
    assert len(ranges) == 2
    # Before the header, in the header, in the first batch, and in a later one.
    with CuttingProxy(server.port, [0, 40, 300_000, 2_500_000]) as proxy:
        path = f"/v1/entities/{entity}/log/messages"
        given = list(stream(proxy.port).rows(path, ranges, columns="sequence_number,body"))
    for one in ranges:
        batches = [batch for whose, batch in given if whose.partition == one.partition]
        numbers = pa.Table.from_batches(batches).column("sequence_number").to_pylist()
        assert numbers == list(range(one.start, one.end))
    assert proxy.requests == 5


def test_what_the_server_refuses_is_told_as_it_is(
    client: Client, server: ServerProcess, entity: str
) -> None:
    client.create_queue(entity)
    fill(client, entity, 3)
    client.receiver(entity, delete=True).receive(3)
    path = f"/v1/entities/{entity}/log/messages"
    ranges = [Range(0, 1, 4, ANY)]
    with pytest.raises(LogGap) as gap:
        list(stream(server.port).rows(path, ranges))
    assert (gap.value.first, gap.value.last) == (1, 3)
    with pytest.raises(EntityReplaced):
        list(stream(server.port).rows(path, [Range(0, 1, 4, 1 << 40)]))
    with socket.create_server(("127.0.0.1", 0)) as unheard:
        port = unheard.getsockname()[1]
    with pytest.raises(Unreachable):
        list(stream(port).rows(path, ranges))
