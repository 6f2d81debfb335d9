"""Whatever a peer says, it is told what is wrong, or nothing; we are never at fault.

Streams are made of frames that mean something, in any order, some of them damaged, and are fed
whole and in pieces: the answer is the same.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onibus import Bus
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.frames import EMPTY_FRAME, PROTOCOL_HEADER, frame
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.management import OPERATIONS
from tests.amqp.peer import Peer
from tests.amqp.raw_client import attach, message, transfer

handles = st.integers(0, 3)
ids = st.integers(0, 5)
addresses = st.sampled_from(
    ["q", "s", "t", "t/subscriptions/u", "q/$deadletterqueue", "q/$management", "$cbs", "", "x/y"]
)
states = st.sampled_from(
    [
        say.accepted(),
        say.released(),
        say.rejected(),
        say.performative(say.MODIFIED, [to.TRUE, to.TRUE]),
        say.performative(say.TRANSACTIONAL, [to.binary(b"x"), say.accepted()]),
        to.NULL,
        to.encode(7),
    ]
)
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 2**33), st.text(max_size=5), st.binary(max_size=5)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
#: Bodies of requests: the words that they have, with any values.
words = st.sampled_from(
    [
        *("from-sequence-number", "message-count", "lock-tokens", "sequence-numbers", "messages"),
        *("session-id", "session-state", "rule-name", "rule-description", "disposition-status"),
        *("skip", "top", "receiver-settle-mode", "enqueued-time-utc", "properties-to-modify"),
    ]
)
requests = st.builds(
    lambda operation, body: (
        sections.section(sections.PROPERTIES, to.list_([to.encode("1")]))
        + sections.section(
            sections.APPLICATION_PROPERTIES, to.text_map({"operation": to.string(operation)})
        )
        + sections.section(sections.VALUE, to.encode(body))
    ),
    st.sampled_from([*OPERATIONS, "put-token", "nothing"]),
    st.one_of(values, st.dictionaries(words, values, max_size=5)),
)
payloads = st.one_of(
    st.builds(message, st.binary(max_size=9), st.text(max_size=5)), requests, st.binary(max_size=30)
)
said = st.one_of(
    st.builds(
        attach,
        handles,
        st.booleans(),
        addresses,
        addresses,
        snd=st.integers(0, 2),
        rcv=st.integers(0, 1),
        name=st.sampled_from(["a", "b"]),
        terminus=st.sampled_from([None, say.performative(say.COORDINATOR, [])]),
    ),
    st.builds(
        transfer,
        handles,
        ids,
        payloads,
        settled=st.booleans(),
        more=st.booleans(),
        state=states,
        message_format=st.sampled_from([0, 0x80013700]),
    ),
    st.builds(
        say.flow,
        ids,
        st.integers(0, 9),
        ids,
        st.one_of(st.none(), st.tuples(handles, ids, st.integers(0, 9), st.booleans())),
    ),
    st.builds(say.disposition, st.booleans(), ids, ids, states),
    st.builds(say.detach, handles, st.none()),
    st.just(say.performative(say.BEGIN, [to.NULL, to.uint(0), to.uint(9), to.uint(9)])),
    st.builds(
        lambda code, value: to.described(code, to.encode(value)), st.integers(0x0F, 0x1A), values
    ),
)
frames = st.builds(frame, st.integers(0, 1), said)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Return what a peer says after the open."""
    content = bytearray(b"".join(draw(st.lists(frames, max_size=12))))
    for _ in range(draw(st.integers(0, 2))):
        if content:
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content)


async def _answers(stream: bytes, piece: int) -> list[Any]:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        await bus.create_queue("s", requires_session=True)
        await bus.create_topic("t")
        await bus.create_subscription("t", "u")
        peer = Peer(bus)
        peer.greet()
        peer.feed(EMPTY_FRAME + stream, piece)
        heard = peer.heard()
        for _ in range(5):
            await asyncio.sleep(0)
        heard += peer.heard()
        peer.connection.lost()
        assert peer.connection.held_bytes >= 0
        return heard


class Faults(logging.Handler):
    """What is logged is a fault of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


# Few, as fuzzing takes many more (tests/amqp/fuzz): these are made anew in every run.
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams(), st.integers(1, 9))
def test_we_are_never_at_fault(stream: bytes, piece: int) -> None:
    handler = Faults()
    logger = logging.getLogger("onibus.amqp")
    logger.addHandler(handler)
    try:
        whole = asyncio.run(_answers(stream, 0))
        torn = asyncio.run(_answers(stream, piece))
    finally:
        logger.removeHandler(handler)
    assert not handler.found, [one.exc_info for one in handler.found]
    for heard in (whole, torn):
        assert b"amqp:internal-error" not in repr(heard).encode()
    assert _endings(whole) == _endings(torn)


def _endings(heard: list[Any]) -> list[tuple[int, int, str]]:
    """Return what was ended, and why."""
    return sorted(
        (one.channel, one.code, one.condition)
        for one in heard
        if one.code in (say.CLOSE, say.END)
        or (one.code == say.DETACH and one.fields[2] is not None)
        if one.fields[2 if one.code == say.DETACH else 0] is not None
    )


@pytest.mark.parametrize("piece", [0, 1])
def test_a_header_alone_is_answered(piece: int) -> None:
    async def greeted() -> bytes:
        async with Bus.ephemeral() as bus:
            peer = Peer(bus)
            peer.feed(PROTOCOL_HEADER, piece)
            return peer.connection.take(0.0)

    assert asyncio.run(greeted()) == PROTOCOL_HEADER
