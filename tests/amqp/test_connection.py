"""Connections, sessions and links: what is allowed when, and what ends for what is not."""

from __future__ import annotations

from typing import Any

import pytest

from onibus import Bus, Message
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.connection import (
    CHANNEL_MAX,
    FRAME_BYTES_MAX,
    HANDSHAKE_S,
    STATES,
    State,
)
from onibus.protocols.amqp.decode import Described, Symbol
from onibus.protocols.amqp.frames import EMPTY_FRAME, PROTOCOL_HEADER, SASL_HEADER, frame
from onibus.protocols.amqp.link import LINK_STATES, LinkState
from onibus.protocols.amqp.session import LINKS_MAX, SESSION_STATES, SessionState
from tests.amqp.peer import Peer, greeted
from tests.amqp.raw_client import attach, message, transfer
from tests.bus_helpers import run, until

SESSION_FRAMES = {
    "begin": say.performative(say.BEGIN, [to.NULL, to.uint(0), to.uint(9), to.uint(9)]),
    "attach": attach(0, say.SENDER, "q", "q"),
    "flow": say.flow(0, 9, 0),
    "transfer": transfer(0, 0, message(b"x")),
    "disposition": say.disposition(say.RECEIVER, 0, 0, say.accepted()),
    "detach": say.detach(0, None),
    "end": say.end(None),
}


@pytest.mark.parametrize("word", SESSION_FRAMES)
@run
async def test_nothing_comes_before_the_open(word: str) -> None:
    async with Bus.ephemeral() as bus:
        peer = Peer(bus)
        peer.feed(PROTOCOL_HEADER)
        peer.say(SESSION_FRAMES[word])
        peer.headers(1)
        *_, last = peer.heard()
        assert (last.code, last.condition) == (say.CLOSE, "amqp:illegal-state")


@pytest.mark.parametrize("word", [word for word in SESSION_FRAMES if word != "begin"])
@run
async def test_nothing_comes_on_a_channel_without_a_session(word: str) -> None:
    async with greeted() as (peer, _):
        peer.say(SESSION_FRAMES[word], channel=7)
        [last] = peer.heard()
        assert (last.code, last.condition) == (say.CLOSE, "amqp:illegal-state")
        assert peer.connection.state is State.CLOSING
        # What comes after a close is not read; the peer's own ends it.
        peer.say(SESSION_FRAMES["begin"], channel=3)
        peer.say(say.close(None))
        assert peer.heard() == []
        assert peer.connection.is_over


def _open(*fields: bytes) -> bytes:
    return say.performative(say.OPEN, list(fields))


@pytest.mark.parametrize(
    ("said", "ending", "condition"),
    [
        (SESSION_FRAMES["begin"], say.CLOSE, "amqp:illegal-state"),
        (_open(to.string("again")), say.CLOSE, "amqp:illegal-state"),
        (say.performative(say.BEGIN, []), say.CLOSE, "amqp:invalid-field"),
        (say.performative(say.ATTACH, [to.string("x")]), say.CLOSE, "amqp:invalid-field"),
        (say.performative(say.FLOW, [to.string("x")]), say.CLOSE, "amqp:invalid-field"),
        (say.performative(0x19, []), say.CLOSE, "amqp:decode-error"),
        (b"\x00\x53\x14\x40", say.CLOSE, "amqp:decode-error"),
        (b"nonsense", say.CLOSE, "amqp:decode-error"),
        (SESSION_FRAMES["transfer"], say.END, "amqp:session:unattached-handle"),
        (SESSION_FRAMES["detach"], say.END, "amqp:session:unattached-handle"),
        (attach(256, say.SENDER, "q", "q"), say.END, "amqp:resource-limit-exceeded"),
    ],
)
@run
async def test_what_is_not_allowed_ends_what_it_concerns(
    said: bytes, ending: int, condition: str
) -> None:
    async with greeted() as (peer, _):
        peer.say(said)
        *_, last = peer.heard()
        assert (last.code, last.condition) == (ending, condition)
        # All three fields of an error are there: one client hangs where they are not.
        assert len(last.fields[0].value) == 3


@run
async def test_a_session_that_failed_leaves_the_others() -> None:
    async with greeted() as (peer, bus):
        peer.begin(1)
        peer.say(attach(0, say.SENDER, "q", "q"), channel=1)
        peer.say(attach(0, say.SENDER, "q", "q"))
        peer.say(attach(0, say.SENDER, "q", "q"))
        ends = [one for one in peer.heard() if one.code == say.END]
        assert [(one.channel, one.condition) for one in ends] == [(0, "amqp:session:handle-in-use")]
        peer.say(SESSION_FRAMES["transfer"])
        peer.say(transfer(0, 0, message(b"x")), channel=1)
        [done] = await peer.hear(say.DISPOSITION)
        assert done.channel == 1
        assert bus.queue("q").active_count == 1
        peer.say(say.end(None))
        peer.begin(0)
        assert [one.code for one in peer.heard()] == [say.BEGIN]


@pytest.mark.parametrize("piece", [0, 1, 7])
@run
async def test_sasl_and_pipelining_however_it_is_torn(piece: int) -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        peer = Peer(bus)
        init = say.performative(0x41, [to.symbol("ANONYMOUS"), to.NULL, to.NULL])
        stream = SASL_HEADER + frame(0, init, 1) + PROTOCOL_HEADER
        stream += frame(0, _open(to.string("peer"))) + EMPTY_FRAME
        stream += frame(1, SESSION_FRAMES["begin"]) + frame(1, SESSION_FRAMES["attach"])
        peer.feed(stream, piece)
        assert peer.headers(1) == [SASL_HEADER]
        assert [one.code for one in (await _frames(peer, 2))] == [0x40, 0x44]
        assert peer.headers(1) == [PROTOCOL_HEADER]
        assert [one.code for one in peer.heard()] == [say.OPEN, say.BEGIN, say.ATTACH, say.FLOW]


async def _frames(peer: Peer, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        [(_, _, body)] = peer._cutter.frames(1)
        code, fields, _ = say.read_list(body)
        found.append(type("One", (), {"code": code, "fields": fields}))
    return found


@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x09\x01", b"GET / HT", b"AMQP\x01\x01\0\0"])
@run
async def test_other_protocols_are_told_which_is_spoken(header: bytes) -> None:
    async with Bus.ephemeral() as bus:
        peer = Peer(bus)
        peer.feed(header)
        assert peer.connection.take(0.0) == SASL_HEADER
        assert peer.connection.is_over


@run
async def test_frames_that_are_too_large_are_refused_before_they_are_there() -> None:
    async with greeted() as (peer, _):
        peer.feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\2\0\0\0")
        [last] = peer.heard()
        assert last.condition == "amqp:connection:framing-error"
    async with Bus.ephemeral() as bus:
        peer = Peer(bus)
        # Nobody who is not let in yet sends more than this.
        peer.feed(SASL_HEADER + (513).to_bytes(4, "big") + b"\2\1\0\0")
        assert peer.connection.is_over


@run
async def test_channels_are_bounded() -> None:
    async with greeted() as (peer, _):
        peer.begin(CHANNEL_MAX)
        assert [one.code for one in peer.heard()] == [say.BEGIN]
        peer.begin(CHANNEL_MAX + 1)
        assert [one.code for one in peer.heard()] == [say.CLOSE]


@run
async def test_who_says_much_at_once_is_heard_in_pieces() -> None:
    """Others have their turn in between; nothing is lost, and the order stays."""
    async with greeted() as (peer, _):
        said = b"".join(
            frame(channel, SESSION_FRAMES["begin"]) + frame(channel, SESSION_FRAMES["end"])
            for channel in range(1, 2_001)
        )
        peer.feed(said)
        pieces = [peer.heard()]
        while peer.connection.is_behind:
            peer.connection.read_on(0.0)
            pieces.append(peer.heard())
        assert max(map(len, pieces)) <= 500
        told = [(one.channel, one.code) for piece in pieces for one in piece]
        assert told == [(n, code) for n in range(1, 2_001) for code in (say.BEGIN, say.END)]


@run
async def test_links_are_bounded_over_all_sessions() -> None:
    async with greeted() as (peer, _):
        for channel in range(1, 21):
            peer.begin(channel)
            for handle in range(250):
                peer.say(attach(handle, say.RECEIVER, "$cbs", "me"), channel)
        peer.heard()
        assert peer.connection.link_count == LINKS_MAX
        peer.say(attach(0, say.RECEIVER, "$cbs", "me"))
        [ended] = peer.heard()
        assert (ended.code, ended.condition) == (say.END, "amqp:resource-limit-exceeded")
        peer.say(say.end(None), channel=1)
        assert peer.connection.link_count == LINKS_MAX - 250


@run
async def test_transfers_that_never_end_keep_no_more_than_a_message() -> None:
    async with greeted(max_message_bytes=10_000) as (peer, _):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        for _ in range(100):
            peer.say(transfer(0, 1, b"\0" * 1_000, more=True))
            assert peer.connection.held_bytes <= 10_000
        peer.say(transfer(0, 1, b""))
        [refused] = await peer.hear(say.DISPOSITION)
        assert _error(refused.fields[4]) == "amqp:link:message-size-exceeded"
        peer.say(transfer(0, 2, message(b"x")))
        [taken] = await peer.hear(say.DISPOSITION)
        assert taken.fields[4].descriptor == say.ACCEPTED
        assert peer.connection.held_bytes == 0


def _error(state: Described) -> str:
    assert state.descriptor == say.REJECTED
    condition: Symbol = state.value[0].value[0]
    return str(condition)


@run
async def test_a_refused_link_has_null_termini_and_then_its_error() -> None:
    async with greeted() as (peer, _):
        peer.attach(0, say.SENDER, "nowhere")
        attached, detached = peer.heard()
        assert (attached.fields[5], attached.fields[6]) == (None, None)
        assert (detached.code, detached.condition) == (say.DETACH, "amqp:not-found")
        peer.say(say.detach(0, None))
        # One detach a side: an answer to an answer would end the connection of one client.
        assert peer.heard() == []


@run
async def test_outcomes_are_said_in_ranges_and_credit_is_given_again() -> None:
    async with greeted() as (peer, _):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(b"".join(frame(0, transfer(0, n, message(b"x"))) for n in range(600)))
        heard = peer.heard()
        assert [one.fields[5:7] for one in heard if one.code == say.FLOW] == [[500, 1_000]]
        told = await peer.hear(say.DISPOSITION)
        ids = {one for each in told for one in range(each.fields[1], each.fields[2] + 1)}
        assert ids == set(range(600))
        assert len(told) <= 3


@run
async def test_credit_drain_and_windows() -> None:
    async with greeted() as (peer, bus):
        for number in range(5):
            await bus.send("q", Message(body=str(number).encode()))
        peer.attach(0, say.RECEIVER, "q", rcv=1)
        peer.heard()
        peer.flow(0, 2)
        transfers = await peer.hear(say.TRANSFER, 2)
        assert [one.fields[1] for one in transfers] == [0, 1]
        assert all(len(one.fields) == 11 for one in transfers)
        peer.flow(0, 10, count=2, drain=True)
        heard = await peer.hear(say.FLOW)
        assert heard[0].fields[4:9] == [0, 12, 0, None, True]
        assert bus.queue("q").held_count == 5
        peer.say(say.disposition(say.RECEIVER, 0, 4, say.accepted()))
        await until(lambda: bus.queue("q").held_count == 0)


@run
async def test_a_window_that_is_full_is_waited_for() -> None:
    async with greeted() as (peer, bus):
        await bus.send("q", Message(body=b"x" * 200_000))
        peer.attach(0, say.RECEIVER, "q", rcv=1)
        peer.heard()
        # Three frames: the message needs four of this peer's size.
        peer.say(say.flow(0, 3, 0, (0, 0, 10, False)))
        first = await peer.hear(say.TRANSFER, 3)
        assert [one.fields[5] for one in first] == [True] * 3
        assert peer.heard() == []
        peer.say(say.flow(3, 3, 0))
        [last] = [one for one in peer.heard() if one.code == say.TRANSFER]
        assert last.fields[5] is False
        assert sum(len(one.payload) for one in (*first, last)) > 200_000


@run
async def test_silence_ends_what_is_not_open_and_what_is() -> None:
    async with Bus.ephemeral() as bus:
        peer = Peer(bus)
        peer.feed(SASL_HEADER)
        peer.connection.tick(HANDSHAKE_S - 1)
        assert not peer.connection.is_over
        peer.connection.tick(HANDSHAKE_S + 1)
        assert peer.connection.is_over
    async with greeted() as (peer, _):
        peer.connection.tick(200.0)
        assert peer.heard() == []
        peer.connection.tick(301.0)
        assert [one.code for one in peer.heard()] == [say.CLOSE]
        peer.connection.tick(400.0)
        assert peer.connection.is_over


@run
async def test_a_peer_that_asks_for_it_hears_something_in_time() -> None:
    async with Bus.ephemeral() as bus:
        peer = Peer(bus)
        idle = [to.string("peer"), to.NULL, to.NULL, to.NULL, to.uint(60_000)]
        peer.feed(PROTOCOL_HEADER + frame(0, _open(*idle)))
        peer.connection.take(0.0)
        assert peer.connection.wake_at() == 30.0
        peer.connection.tick(30.0)
        assert peer.connection.take(30.0) == EMPTY_FRAME
        assert peer.connection.wake_at() == 60.0


@pytest.mark.parametrize(
    ("table", "states"),
    [(STATES, State), (LINK_STATES, LinkState), (SESSION_STATES, SessionState)],
)
def test_every_state_is_reached(table: dict[Any, Any], states: Any) -> None:
    begins = {State.START, LinkState.PENDING, SessionState.BEGUN, State.CLOSING}
    reached = set(table.values()) | begins
    assert set(states) <= reached


@run
async def test_what_was_never_meant_leaves_the_bus_alone() -> None:
    async with greeted() as (peer, bus):
        for word in (b"\0" * 64, b"\xff" * 64, bytes(range(64))):
            other = Peer(bus)
            other.feed(PROTOCOL_HEADER + word)
            assert other.connection.state in (State.CLOSING, State.CLOSED, State.GREETED)
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.say(transfer(0, 0, b"no message"))
        peer.say(transfer(0, 1, message(b"x"), message_format=0x80013700))
        [told] = await peer.hear(say.DISPOSITION)
        assert told.fields[1:3] == [0, 1]
        assert _error(told.fields[4]) == "amqp:decode-error"
        assert bus.queue("q").active_count == 0
