"""Responses with many or large messages: encoded in slices, while their client reads them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from onibus import Bus, Message
from onibus.api.delivery import FifoMessages
from onibus.api.messages import Messages, message_out
from onibus.api.searching import SearchOut
from onibus.core.limits import RECEIVED_MAX
from onibus.core.message import ReceivedMessage
from onibus.protocols.http import arrow, listing
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.listing import BYTES_A_SLICE, COUNT_A_SLICE, messages_out
from onibus.protocols.http.messages import Response
from tests.bus_helpers import run
from tests.server.http_helpers import post
from tests.server.server_helpers import ROOT, serving, signed

#: A byte becomes at most six in JSON (\u0001), and the fields around it are small.
PIECE_MAX = 6 * BYTES_A_SLICE + COUNT_A_SLICE * 500
LONG = 3 * BYTES_A_SLICE + 1


def received(number: int, **fields: Any) -> ReceivedMessage:
    message = Message(message_id=f"m{number}", **fields)
    return ReceivedMessage(message=message, sequence_number=number, enqueued_time_ms=7)


async def pieces_of(response: Response) -> list[bytes]:
    assert response.stream is not None, "it was encoded at once"
    return [bytes(piece) async for piece in response.stream]


BODIES = {
    "text": b"x" * LONG,
    "controls": b"\x01" * LONG,
    "characters of four bytes": "🚌".encode() * (LONG // 4),
    "characters that slices cut": b"x" + "🚌".encode() * (LONG // 4),
    "bytes": b"\xff" * LONG,
    "text, and a cut character": b"x" * LONG + "🚌".encode()[:3],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("limit", [None, LONG - 1, LONG - 2, 2 * LONG])
@run
async def test_a_large_body_is_the_same_in_slices(body: bytes, limit: int | None) -> None:
    messages = [received(1), received(2, body=body, subject="s"), received(3, body=b"end")]
    pieces = await pieces_of(messages_out(messages, body_limit=limit))
    assert max(map(len, pieces)) < PIECE_MAX
    whole = Messages([message_out(one, limit) for one in messages])
    assert json.loads(b"".join(pieces)) == json.loads(msgspec.json.encode(whole))


@run
async def test_large_properties_are_the_same_in_slices() -> None:
    properties = {"s": "é\x01" * LONG, "b": b"\xfe" * LONG, "n": 5, "none": None}
    many = {f"p{number}": "v" * 2_000 for number in range(1_000)}
    messages = [received(1, properties=properties), received(2, properties=many), received(3)]
    pieces = await pieces_of(messages_out(messages))
    assert max(map(len, pieces)) < PIECE_MAX
    whole = Messages([message_out(one) for one in messages])
    assert json.loads(b"".join(pieces)) == json.loads(msgspec.json.encode(whole))


@run
async def test_many_messages_are_encoded_in_slices() -> None:
    messages = [received(number, body=b"x") for number in range(1, 5 * COUNT_A_SLICE)]
    for around in (
        Messages,
        lambda some: FifoMessages(some, "attempt"),
        lambda some: SearchOut(some, 9, 10),
    ):
        pieces = await pieces_of(messages_out(messages, around))
        assert max(piece.count(b"sequence_number") for piece in pieces) == COUNT_A_SLICE
        whole = around([message_out(one) for one in messages])
        assert json.loads(b"".join(pieces)) == json.loads(msgspec.json.encode(whole))


@run
async def test_others_have_their_turn_between_two_pieces() -> None:
    async with Bus.ephemeral() as bus, serving(ROOT, bus=bus) as (_, client):
        await bus.create_queue("q")
        await bus.send_batch("q", [Message(body=b"x") for _ in range(RECEIVED_MAX)])
        turns, ended = 0, asyncio.Event()

        async def other() -> None:
            nonlocal turns
            while not ended.is_set():
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        answer = await client.post(
            "/v1/entities/q/receive", json={"limit": RECEIVED_MAX}, headers=signed()
        )
        made = answer.json()["messages"]
        ended.set()
        await beside
        assert len(made) == RECEIVED_MAX
        assert answer.headers["transfer-encoding"] == "chunked"
        assert turns > RECEIVED_MAX // COUNT_A_SLICE


@run
async def test_a_client_that_reads_too_slowly_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small pieces, so that no single wait for the client is long.
    monkeypatch.setattr(listing, "BYTES_A_SLICE", 4_096)
    limits = Limits(write_seconds=0.5, body_rate_min=1 << 40)
    async with Bus.ephemeral() as bus, serving(ROOT, bus=bus, limits=limits) as (server, _):
        await bus.create_queue("q", max_message_bytes=17 << 20)
        await bus.send("q", Message(body=b"x" * (16 << 20)))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        head = f"authorization: {signed()['authorization']}"
        writer.write(post("/v1/entities/q/peek", {"limit": 1}, head))
        got = 0
        try:
            while piece := await reader.read(20_000):
                got += len(piece)
                await asyncio.sleep(0.005)
        except ConnectionError:
            pass
        assert got < 16 << 20
        writer.close()


@run
async def test_a_large_batch_of_arrow_is_sent_in_pieces() -> None:
    import pyarrow as pa

    schema = pa.schema([("body", pa.binary())])
    batches = [pa.record_batch([[b"x" * (5 << 20)]], schema) for _ in range(2)]
    response = arrow.table_response(schema, list(batches))
    assert response.held_bytes >= 10 << 20
    pieces = await pieces_of(response)
    assert max(map(len, pieces)) <= 1 << 20
    table = pa.ipc.open_stream(b"".join(pieces)).read_all()
    assert table.equals(pa.Table.from_batches(batches))
