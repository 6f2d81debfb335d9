"""The memory that unauthenticated clients hold together is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import uvloop

from onibus import Bus
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.frames import PROTOCOL_HEADER, SASL, SASL_HEADER, frame
from onibus.protocols.http.limits import Limits
from onibus.security.keys import ROOT_NAME, AccessKey, Keyring
from onibus.server.server import Server
from tests.amqp.raw_client import attach, transfer
from tests.bus_helpers import PATIENCE_S
from tests.server import strangers
from tests.server.http_helpers import get, post
from tests.server.server_helpers import signed
from tests.server.strangers import SECRET

HELD_BYTES_MAX = 2 << 20
#: 60 parts of this size are six times the bound.
PART_BYTES, TIMES = 200_000, 60


@asynccontextmanager
async def served() -> AsyncIterator[Server]:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        keys = Keyring([AccessKey(name=ROOT_NAME, primary=SECRET)])
        limits = Limits(strangers_bytes_max=HELD_BYTES_MAX)
        async with Server(bus, keys, http_port=0, amqp_port=0, sqs_port=0, limits=limits) as server:
            yield server


def nameless(*said: bytes) -> bytes:
    """Return frames that open an anonymous AMQP connection, and more frames."""
    init = say.performative(0x41, [to.symbol("ANONYMOUS"), to.NULL, to.NULL])
    opened = say.performative(say.OPEN, [to.string("me"), to.NULL, to.uint(65_536)])
    begin = say.performative(say.BEGIN, [to.NULL, to.uint(0), to.uint(1_000), to.uint(1_000)])
    start = SASL_HEADER + frame(0, init, SASL) + PROTOCOL_HEADER
    return start + b"".join(frame(0, one) for one in (opened, begin, *said))


def part_of_body(server: Server) -> tuple[int | None, bytes]:
    return server.http_port, post(strangers.SEND, bytes(PART_BYTES))[:-1]


def part_of_head(server: Server) -> tuple[int | None, bytes]:
    return server.http_port, get("/", "x: " + "y" * 30_000)[:-4]


def sent_ahead(server: Server) -> tuple[int | None, bytes]:
    """A request, and a part of another one sent ahead."""
    return server.http_port, get("/v1/queues") + post(strangers.SEND, bytes(PART_BYTES))[:-1]


def part_of_a_signed_body(server: Server) -> tuple[int | None, bytes]:
    """SQS can authenticate a request only when its body is complete."""
    assert server.sqs_port is not None
    body = "x" * (4 * PART_BYTES)
    whole = strangers.sqs_request(server.sqs_port, "SendMessage", QueueUrl="q", MessageBody=body)
    return server.sqs_port, whole.replace(b"Signature=", b"Signature=0")[:-1]


def part_of_frame(server: Server) -> tuple[int | None, bytes]:
    return server.amqp_port, nameless() + strangers.part_of_frame(PART_BYTES)


def parts_of_tokens(server: Server) -> tuple[int | None, bytes]:
    links = [attach(handle, say.SENDER, "me", "$cbs") for handle in range(10)]
    parts = [transfer(handle, handle, bytes(20_000), more=True) for handle in range(10)]
    return server.amqp_port, nameless(*links, *parts)


def part_over_websocket(server: Server) -> tuple[int | None, bytes]:
    content = nameless() + strangers.part_of_frame(PART_BYTES)
    return server.http_port, strangers.UPGRADE + strangers.websocket_frame(content)


Part = Callable[[Server], tuple[int | None, bytes]]
PARTS = [
    part_of_body,
    part_of_head,
    sent_ahead,
    part_of_a_signed_body,
    part_of_frame,
    parts_of_tokens,
    part_over_websocket,
]


@pytest.mark.parametrize("part", PARTS)
def test_strangers_hold_no_more_than_they_may(part: Part) -> None:
    async def run() -> None:
        async with served() as server:
            port, sent = part(server)
            assert port is not None
            writers: list[asyncio.StreamWriter] = []
            most = 0
            for _ in range(TIMES if len(sent) >= PART_BYTES else 6 * TIMES):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                writers.append(writer)
                await asyncio.sleep(0.001)
                most = max(most, server.peers.held_bytes)
            async with asyncio.timeout(PATIENCE_S):
                while not server.peers.evicted:
                    await asyncio.sleep(0.001)
                    most = max(most, server.peers.held_bytes)
            assert HELD_BYTES_MAX // 2 < most <= HELD_BYTES_MAX
            # A client with a key succeeds, with a body of the same size.
            address = f"http://127.0.0.1:{server.http_port}"
            async with httpx.AsyncClient(
                base_url=address, trust_env=False, timeout=PATIENCE_S
            ) as client:
                body = {"body": "x" * PART_BYTES}
                told = await client.post(strangers.SEND, json=body, headers=signed(key=SECRET))
                assert told.status_code == 200, told.text
            for writer in writers:
                writer.close()
            async with asyncio.timeout(PATIENCE_S):
                while server.peers.count:
                    await asyncio.sleep(0.01)
            assert server.peers.held_bytes == 0

    uvloop.run(run())
