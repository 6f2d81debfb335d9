"""The codec: what is written is read back, as another codec reads it; nothing else is believed."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus._pyamqp import _decode, _encode
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import (
    DEPTH_MAX,
    Decimal,
    Described,
    Symbol,
    Timestamp,
    decode,
    skip,
)
from onibus.protocols.amqp.errors import AmqpError, DecodeError
from onibus.protocols.amqp.frames import Cutter, frame

simple = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.uuids(),
    st.builds(Symbol, st.text(st.characters(codec="ascii"), max_size=20)),
    st.builds(Timestamp, st.integers(-(2**63), 2**63 - 1)),
    st.builds(Decimal, st.just(0x94), st.binary(min_size=16, max_size=16)),
)
keys = st.one_of(st.text(max_size=20), st.integers(0, 9), st.uuids())
values = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(keys, inner, max_size=5),
        st.builds(Described, st.integers(0, 2**64 - 1), inner),
    ),
    max_leaves=40,
)


@given(values)
def test_what_is_written_is_read_back(value: Any) -> None:
    content = to.encode(value)
    found, end = decode(content)
    assert found == value
    assert type(found) is type(value)
    assert end == skip(content, 0) == len(content)


@given(values, st.integers(0, 400))
def test_what_is_cut_short_is_refused(value: Any, at: int) -> None:
    content = to.encode(value)
    if at < len(content):
        with pytest.raises(DecodeError):
            decode(content[:at])


@settings(max_examples=1_000)
@given(st.binary(max_size=200))
def test_bytes_are_read_or_refused_and_nothing_else(content: bytes) -> None:
    try:
        _, end = decode(content)
    except DecodeError:
        return
    assert end == skip(content, 0) <= len(content)


@settings(max_examples=1_000)
@given(st.binary(max_size=200))
def test_performatives_are_read_or_refused_and_nothing_else(content: bytes) -> None:
    for code in range(say.OPEN, say.CLOSE + 1):
        try:
            found, fields, _ = say.read_list(bytes((0, 0x53, code)) + content)
            say.read(found, fields)
        except AmqpError:
            continue


_uints = st.one_of(st.integers(0, 600), st.integers(0, 2**32 - 1))
_heads = st.tuples(_uints, _uints, st.binary(max_size=32), st.sampled_from((0, 0x80013700)))
_mores = st.lists(st.sampled_from((to.NULL, to.FALSE, to.TRUE, to.ubyte(0))), max_size=7)


def _transfer(head: tuple[int, int, bytes, int], more: list[bytes]) -> bytes:
    handle, delivery_id, tag, form = head
    fields = [to.uint(handle), to.uint(delivery_id), to.binary(tag), to.uint(form), *more]
    return say.performative(say.TRANSFER, fields)


@given(_heads, _mores, st.booleans())
def test_transfers_of_the_usual_form_are_read_the_same_both_ways(
    head: tuple[int, int, bytes, int], more: list[bytes], wide: bool
) -> None:
    whole = _transfer(head, more)
    if wide:
        # The same list with its size and count in four bytes each.
        content = whole[6:]
        sizes = (len(content) + 4).to_bytes(4, "big") + (4 + len(more)).to_bytes(4, "big")
        whole = whole[:3] + b"\xd0" + sizes + content
    plain = say.read_plain(whole + b"payload")
    usual = not any(one in (to.TRUE, to.ubyte(0)) for one in more) and to.FALSE not in more[2:]
    assert (plain is not None) == usual
    if plain is not None:
        code, fields, at = say.read_list(whole + b"payload")
        expected = say.read(code, fields)
        assert plain == (expected.handle, expected.delivery_id, expected.message_format, at)
        # False and nothing are the same.
        assert not any(expected[4:])


@example((0, 0, b"tag", 0), [], 4, 3)
@given(_heads, _mores, st.integers(0, 60), st.integers(0, 255))
def test_a_transfer_that_is_read_the_short_way_is_good_the_long_way_too(
    head: tuple[int, int, bytes, int], more: list[bytes], place: int, byte: int
) -> None:
    """One byte of it is another one, or it ends there."""
    whole = _transfer(head, more)
    for changed in (whole[:place] + bytes((byte,)) + whole[place + 1 :], whole[:place]):
        plain = say.read_plain(changed)
        if plain is not None and changed[:3] == say.PLAIN_TRANSFER:
            code, fields, at = say.read_list(changed)
            expected = say.read(code, fields)
            assert plain == (expected.handle, expected.delivery_id, expected.message_format, at)
            assert not any(expected[4:])


theirs = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**31), 2**31 - 1),
        st.floats(allow_nan=False, width=64),
        st.text(max_size=300),
        st.binary(max_size=300),
        st.uuids(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=9), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(theirs)
def test_another_codec_agrees(value: Any) -> None:
    output = bytearray()
    _encode.encode_value(output, value)
    assert decode(bytes(output))[0] == value
    content = to.encode(value)
    rest, found = _decode._DECODE_BY_CONSTRUCTOR[content[0]](memoryview(content)[1:])
    assert bytes(rest) == b""
    # That codec reads texts as bytes.
    assert found == _texts_as_bytes(value)


def _texts_as_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [_texts_as_bytes(one) for one in value]
    if isinstance(value, dict):
        return {_texts_as_bytes(key): _texts_as_bytes(one) for key, one in value.items()}
    return value


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"\x56\x01", True),
        (b"\x72" + struct.pack(">f", 0.5), 0.5),
        (b"\x73\x00\x00\x00a", "a"),
        (b"\x55\xff", -1),
        (b"\x61\xff\xfe", -2),
        (b"\xe0\x04\x02\x50\x01\x02", [1, 2]),
        (b"\xf0\x00\x00\x00\x05\x00\x00\x00\x03\x41", [True] * 3),
        (b"\xe0\x06\x01\x00\x53\x09\x50\x07", [Described(9, 7)]),
    ],
)
def test_encodings_that_we_do_not_write_are_read(content: bytes, value: Any) -> None:
    assert decode(content) == (value, len(content))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xa1\x05abc",
        b"\xb0\xff\xff\xff\xffabc",
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        # a count that no bytes stand behind
        b"\xd0\x00\x00\x00\x04\x7f\xff\xff\xff",
        b"\xf0\x00\x00\x00\x05\x7f\xff\xff\xff\x41",
        b"\xf0\x00\x00\x00\x05\x7f\xff\xff\xff\x40",
        # a map with a key that has no value, and one with a key that cannot be one
        b"\xc1\x03\x01\x50\x01",
        b"\xc1\x04\x02\x45\x50\x01",
        b"\xa1\x01\xff",
        b"\x73\xff\xff\xff\xff",
        b"\x01",
        b"\x00" * 200,
        b"\xc0\xff\x01" * 100,
    ],
)
def test_lies_are_refused(content: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(content)


def test_depth_is_bounded() -> None:
    def nested(levels: int) -> bytes:
        content = to.EMPTY_LIST
        for _ in range(levels):
            content = to.list_([content])
        return content

    decode(nested(DEPTH_MAX - 1))
    with pytest.raises(DecodeError, match="deep"):
        decode(nested(DEPTH_MAX + 1))


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 50))
def test_frames_are_cut_however_they_are_torn(bodies: list[bytes], piece: int) -> None:
    stream = b"".join(frame(number, body) for number, body in enumerate(bodies))
    cutter = Cutter(512)
    found = []
    for at in range(0, len(stream), piece):
        cutter.feed(stream[at : at + piece])
        found += cutter.frames()
    assert found == [(0, number, body) for number, body in enumerate(bodies)]
    assert not cutter.waiting


@pytest.mark.parametrize("head", [b"\0\0\0\7\2\0\0\0", b"\0\0\0\x08\1\0\0\0", b"\0\0\2\1\2\0\0\0"])
def test_frames_of_wrong_sizes_are_refused(head: bytes) -> None:
    cutter = Cutter(512)
    cutter.feed(head)
    with pytest.raises(AmqpError) as refused:
        cutter.frames()
    assert refused.value.condition == "amqp:connection:framing-error"


def test_times_are_milliseconds() -> None:
    moment = datetime(2026, 11, 16, tzinfo=UTC)
    assert decode(to.encode(moment))[0] == Timestamp(int(moment.timestamp() * 1_000))
    assert decode(to.encode(UUID(int=3)))[0] == UUID(int=3)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=20), st.booleans(), st.booleans())
def test_transfers_that_we_write_are_read_back(
    number: int, tag: bytes, settled: bool, more: bool
) -> None:
    content = say.transfer(3, number, tag, settled, more)
    code, fields, end = say.read_list(content)
    assert (code, end) == (say.TRANSFER, len(content))
    # All eleven: one client counts them.
    assert fields == [3, number, tag, 0, settled, more, *[None] * 5]
