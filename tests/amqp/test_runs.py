"""Transfers that arrive together are read as one run, and mean what they mean one by one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.errors import MESSAGE_SIZE_EXCEEDED, AmqpError
from onibus.protocols.amqp.frames import Cutter, frame
from tests.amqp.peer import Heard, Peer, greeted
from tests.amqp.raw_client import message, transfer
from tests.amqp.test_bursts import bodies, burst, outcomes
from tests.bus_helpers import run

#: Channel, handle, delivery id, message format, payload.
Told = tuple[int, int, int, int, bytes]

_ids = st.one_of(st.integers(0, 600), st.integers(0, 2**32 - 1))
_tags = st.sampled_from((b"", b"1", b"tag1", b"x" * 16, b"y" * 40))
_mores = st.sampled_from(([], [to.FALSE], [to.FALSE, to.FALSE], [to.NULL] * 7, [to.TRUE]))
_transfers = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from((0, 1, 300)),
        _ids,
        _tags,
        st.sampled_from((0, 0x80013700)),
        _mores,
        st.binary(max_size=20),
    ),
    max_size=12,
)


def _stream(transfers: list[tuple[int, int, int, bytes, int, list[bytes], bytes]]) -> bytes:
    found = []
    for channel, handle, delivery_id, tag, form, more, payload in transfers:
        fields = [to.uint(handle), to.uint(delivery_id), to.binary(tag), to.uint(form), *more]
        found.append(frame(channel, say.performative(say.TRANSFER, fields) + payload))
    return b"".join(found)


def _one(channel: int, body: bytes) -> Told | bytes:
    """Return what a transfer of the usual form says, read the long way; of any other, its bytes."""
    code, fields, at = say.read_list(body)
    found = say.read(code, fields)
    if code != say.TRANSFER or found.delivery_id is None or any(found[4:]):
        return body
    return channel, found.handle, found.delivery_id, found.message_format or 0, body[at:]


def _read(stream: bytes, piece: int, by_runs: bool) -> tuple[list[Told | bytes], str]:
    """Return all that was read, and for which condition no more was."""
    cutter = Cutter(512)
    found: list[Told | bytes] = []
    for start in range(0, len(stream), piece):
        cutter.feed(stream[start : start + piece])
        try:
            while True:
                taken = cutter.run() if by_runs else None
                if taken is not None:
                    assert len(taken.ids) == len(taken.bounds) > 0
                    singles = list(taken.transfers())
                    assert taken.bytes_max == max(len(payload) for _, _, payload in singles)
                    for channel, one, payload in singles:
                        assert one.delivery_id is not None
                        told = (channel, one.handle, one.delivery_id, one.message_format or 0)
                        found.append((*told, payload))
                    continue
                frames = cutter.frames(1)
                if not frames:
                    break
                found += [_one(channel, body) for _, channel, body in frames]
        except AmqpError as error:
            return found, error.condition
    return found, ""


@given(_transfers, st.integers(1, 200))
def test_runs_say_what_their_transfers_say(
    transfers: list[tuple[int, int, int, bytes, int, list[bytes], bytes]], piece: int
) -> None:
    stream = _stream(transfers)
    singly = _read(stream, len(stream) or 1, by_runs=False)
    assert _read(stream, len(stream) or 1, by_runs=True) == singly
    assert _read(stream, piece, by_runs=True) == singly
    assert len(singly[0]) == len(transfers)


@example(3, 90, 0x53)
@given(st.integers(2, 6), st.integers(0, 250), st.integers(0, 255))
def test_a_byte_that_differs_is_not_taken_for_another(count: int, place: int, byte: int) -> None:
    alike = [(0, 1, 1_000 + at, b"tag%d" % at, 0, [to.FALSE], b"payload") for at in range(count)]
    stream = _stream(alike)
    stream = stream[:place] + bytes((byte,)) + stream[place + 1 :]
    assert _read(stream, len(stream), by_runs=True) == _read(stream, len(stream), by_runs=False)


@pytest.mark.parametrize("first", [0, 200, 250, 70_000])
def test_transfers_that_are_alike_are_one_run(first: int) -> None:
    cutter = Cutter(512)
    cutter.feed(_stream([(0, 0, first + at, b"tag1", 0, [], b"x" * at) for at in range(100)]))
    runs = []
    while (taken := cutter.run()) is not None:
        runs.append(len(taken.ids))
    assert sum(runs) == 100
    # Numbers of other sizes have other forms: none, one byte, or four.
    assert len(runs) <= 3
    assert not cutter.waiting


async def _flows(peer: Peer, count: int) -> list[Heard]:
    """Return the flows until this number of deliveries is settled; one turn reads some of them."""
    found, settled = [], 0
    while settled < count:
        for one in peer.heard():
            if one.code == say.FLOW:
                found.append(one)
            elif one.code == say.DISPOSITION:
                settled += one.fields[2] - one.fields[1] + 1
        if peer.connection.is_behind:
            peer.connection.read_on(0.0)
        await asyncio.sleep(0)
    return found


@run
async def test_credit_is_told_as_if_they_had_come_one_by_one() -> None:
    sent = burst(*[message(b"%d" % at) for at in range(2_600)], first=1_000)
    told = []
    for piece in (0, 1_000):
        async with greeted() as (peer, _):
            peer.attach(0, say.SENDER, "q")
            peer.heard()
            peer.feed(sent, piece)
            told.append(await _flows(peer, 2_600))
    assert told[0] == told[1]
    assert len(told[0]) == 5


@run
async def test_one_that_is_too_large_is_refused_and_no_other() -> None:
    async with greeted(max_message_bytes=2_000) as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(burst(message(b"a"), message(b"b" * 3_000), message(b"c"), first=1_000))
        told = await outcomes(peer, 3)
        assert told == {1_000: "accepted", 1_001: MESSAGE_SIZE_EXCEEDED, 1_002: "accepted"}
        assert bodies(bus) == [b"a", b"c"]
        assert peer.connection.held_bytes == peer.connection.under_way == 0


@run
async def test_what_comes_for_nobody_fails_as_one_by_one() -> None:
    async with greeted() as (peer, _):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.feed(frame(0, transfer(7, 1_000, message(b"a"))) * 3)
        assert [one.code for one in peer.heard()] == [say.END]
        peer.feed(frame(9, transfer(0, 1_000, message(b"a"))) * 3)
        assert [one.code for one in peer.heard()] == [say.CLOSE]
