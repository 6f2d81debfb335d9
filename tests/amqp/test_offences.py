"""Peers that do what is not allowed, over sockets: told what it was, while others are served."""

from __future__ import annotations

import asyncio

import pytest

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp import serving
from onibus.protocols.amqp.connection import CHANNEL_MAX, FRAME_BYTES_MAX, HANDSHAKE_S
from onibus.protocols.amqp.frames import SASL, SASL_HEADER, frame
from tests.amqp.peer import Peer, greeted
from tests.amqp.raw_client import attach, message, transfer
from tests.amqp.stream_client import StreamClient, listening
from tests.bus_helpers import run

_BEGIN = [to.uint(0), to.uint(9), to.uint(9)]
_SENDER = attach(0, say.SENDER, "me", "q")
_RECEIVER = attach(1, say.RECEIVER, "q", "me")


def _said(*performatives: bytes, channel: int = 0) -> bytes:
    return b"".join(frame(channel, one) for one in performatives)


def _begin(remote: bytes = to.NULL) -> bytes:
    return say.performative(say.BEGIN, [remote, *_BEGIN])


_ENDING_CONNECTIONS = {
    "a second open": (_said(say.performative(say.OPEN, [to.string("x")])), "amqp:illegal-state"),
    "a second begin": (_said(_begin()), "amqp:illegal-state"),
    "an answer to no begin": (_said(_begin(to.ushort(0)), channel=1), "amqp:illegal-state"),
    "a channel too high": (_said(_begin(), channel=CHANNEL_MAX + 1), "amqp:not-allowed"),
    "a flow without a session": (_said(say.flow(0, 9, 0), channel=5), "amqp:illegal-state"),
    "an end without a session": (_said(say.end(None), channel=5), "amqp:illegal-state"),
    "sasl after it is over": (frame(0, _begin(), SASL), "amqp:connection:framing-error"),
    "a type that is none": (frame(0, _begin(), 7), "amqp:connection:framing-error"),
    "a frame too large": (
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\2\0\0\0",
        "amqp:connection:framing-error",
    ),
    "a frame too small": (b"\0\0\0\4\2\0\0\0", "amqp:connection:framing-error"),
    "a body before its header ends": (b"\0\0\0\x10\1\0\0\0" * 2, "amqp:connection:framing-error"),
    "no performative": (frame(0, b"\0\x53\x19\x45"), "amqp:decode-error"),
    "no list": (frame(0, b"\0\x53\x14\x40"), "amqp:decode-error"),
    "nesting too deep": (frame(0, b"\0" * 500), "amqp:decode-error"),
    "a handle that is a text": (
        _said(say.performative(say.DETACH, [to.string("x")])),
        "amqp:invalid-field",
    ),
}
_ENDING_SESSIONS = {
    "a transfer on nothing": (_said(transfer(9, 0, b"")), "amqp:session:unattached-handle"),
    "a flow on nothing": (_said(say.flow(0, 9, 0, (9, 0, 1, False))),
                          "amqp:session:unattached-handle"),
    "a detach on nothing": (_said(say.detach(9, None)), "amqp:session:unattached-handle"),
    "a handle twice": (_said(_SENDER, _SENDER), "amqp:session:handle-in-use"),
    "a handle too high": (_said(attach(256, True, "q", "me")), "amqp:resource-limit-exceeded"),
    "a transfer where one receives": (
        _said(_RECEIVER, transfer(1, 0, message(b"x"))),
        "amqp:illegal-state",
    ),
    "deliveries that end before they begin": (
        _said(say.disposition(say.RECEIVER, 5, 3, say.accepted())),
        "amqp:invalid-field",
    ),
}  # fmt: skip
_ENDING_LINKS = {
    "a delivery without an id": (
        _said(_SENDER, say.performative(say.TRANSFER, [to.uint(0)]) + message(b"x")),
        "amqp:invalid-field",
    ),
    "a link to nowhere": (_said(attach(0, say.SENDER, "me", "nowhere")), "amqp:not-found"),
    "a sender to dead letters": (
        _said(attach(0, say.SENDER, "me", "q/$deadletterqueue")),
        "amqp:not-allowed",
    ),
    "a request that is none": (
        _said(attach(0, say.SENDER, "me", "q/$management"), transfer(0, 0, b"x")),
        "amqp:decode-error",
    ),
}
_OFFENCES = [
    pytest.param(said, code, condition, id=word)
    for code, offences in (
        (say.CLOSE, _ENDING_CONNECTIONS),
        (say.END, _ENDING_SESSIONS),
        (say.DETACH, _ENDING_LINKS),
    )
    for word, (said, condition) in offences.items()
]


@pytest.mark.parametrize(("said", "code", "condition"), _OFFENCES)
@run
async def test_offences_end_what_they_concern_and_nobody_else(
    said: bytes, code: int, condition: str
) -> None:
    async with listening(None) as (bus, _, port):
        good, bad = StreamClient(port), StreamClient(port)
        await good.open()
        good.say(_SENDER)
        await good.expect(say.ATTACH)
        await bad.open()
        bad.writer.write(said)
        fields = await bad.expect(code)
        told = fields[2 if code == say.DETACH else 0].value
        assert (told[0], len(told)) == (condition, 3)
        good.say(transfer(0, 0, message(b"x")))
        assert (await good.expect(say.DISPOSITION))[4].descriptor == say.ACCEPTED
        assert bus.queue("q").active_count == 1
        if code == say.CLOSE:
            bad.say(say.close(None))
            await bad.expect_end()
        else:
            # The connection goes on: another session is begun.
            bad.writer.write(_said(_begin(), channel=3))
            await bad.expect(say.BEGIN)
        good.writer.close()
        bad.writer.close()


@run
async def test_a_message_larger_than_what_may_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a delivery that is not whole nothing is stored: not to read on is to wait forever."""
    monkeypatch.setattr(serving, "HELD_BYTES_MAX", 1_000)
    async with listening(None) as (bus, _, port):
        client = StreamClient(port)
        await client.open()
        client.say(_SENDER)
        await client.expect(say.FLOW)
        whole = message(b"x" * 20_000)
        for at in range(0, len(whole), 500):
            more = at + 500 < len(whole)
            client.say(transfer(0, 0, whole[at : at + 500], more=more))
            await client.writer.drain()
        assert (await client.expect(say.DISPOSITION))[4].descriptor == say.ACCEPTED
        assert len(bus.peek("q")[0].body) == 20_000
        client.writer.close()


@run
async def test_a_peer_that_is_slow_has_no_more_time_than_one_that_is_silent() -> None:
    async with greeted() as (_, bus):
        peer = Peer(bus)
        slow = SASL_HEADER + (500).to_bytes(4, "big") + b"\2\1\0\0" + bytes(400)
        for second, byte in enumerate(slow[:29]):
            peer.connection.feed(bytes((byte,)), float(second))
            peer.connection.tick(float(second))
            assert not peer.connection.is_over
        peer.connection.feed(b"\0", HANDSHAKE_S)
        peer.connection.tick(HANDSHAKE_S)
        assert peer.connection.is_over


@run
async def test_many_bad_peers_at_once_leave_room_for_a_good_one() -> None:
    async with listening(None) as (bus, connections, port):
        bad = [StreamClient(port) for _ in range(20)]
        for one in bad:
            await one.open()
            one.say(_SENDER)
            # Begun, and never ended.
            one.say(transfer(0, 0, bytes(10_000), more=True))
        good = StreamClient(port)
        await good.open()
        good.say(_SENDER)
        good.say(transfer(0, 0, message(b"x")))
        assert (await good.expect(say.DISPOSITION))[4].descriptor == say.ACCEPTED
        for one in bad:
            one.writer.transport.abort()
        while len(connections.open) > 1:
            await asyncio.sleep(0.01)
        assert bus.queue("q").active_count == 1
        good.writer.close()
