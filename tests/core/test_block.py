"""What goes into a block comes back exactly, in both encodings; what was damaged never does."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest

from onibus.core.arrow_block import (
    LOG_SCHEMA,
    SCHEMA,
    checksum,
    conform,
    encode_arrow,
)
from onibus.core.block import (
    ARROW,
    ENTRY,
    HEADER,
    MESSAGE,
    NEVER,
    ROWS,
    Block,
    encode_entries,
    encode_rows,
)
from onibus.core.errors import Damaged, InvalidArgument
from onibus.core.message import Message, encode, encode_properties

STAMP = 1_700_000_000_000
ARRIVED = STAMP + 7


def amqp_message() -> bytes:
    """Return an AMQP 1.0 message, written out by hand from part 3 of the specification."""

    def section(code: int, value: bytes) -> bytes:
        return b"\x00\x53" + bytes([code]) + value

    def text(value: bytes) -> bytes:
        return b"\xa1" + bytes([len(value)]) + value

    def compound(code: int, *items: bytes) -> bytes:
        content = b"".join(items)
        return bytes([code, len(content) + 1, len(items)]) + content

    header = compound(0xC0, b"\x41", b"\x50\x04", b"\x70" + struct.pack(">I", 60_000))
    annotations = compound(0xC1, b"\xa3\x05x-opt", b"\x54\xff")
    properties = compound(
        0xC0, text(b"order-7"), b"\xa0\x03me\x00", text(b"queue"), text("Größe".encode()), b"\x40"
    )
    application = compound(
        0xC1, text(b"tenant"), text(b"contoso"), text(b"ratio"), b"\x82" + struct.pack(">d", 0.1)
    )
    data = b"\xb0" + struct.pack(">I", 300) + bytes(i % 256 for i in range(300))
    return (
        section(0x70, header)
        + section(0x72, annotations)
        + section(0x73, properties)
        + section(0x74, application)
        + section(0x75, data)
    )


#: Attributes of an SQS message: each value beside its data type, custom labels and all.
SQS_ATTRIBUTES = {
    "city": "Zürich",
    "city.DataType": "String",
    "price": "0012.50",  # a Number is text to SQS: its zeros and its label stay
    "price.DataType": "Number.custom",
    "thumbnail": bytes(range(256)),
    "thumbnail.DataType": "Binary.png",
}
EVERY_TYPE: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "one": 1,
    "smallest": -(2**63),
    "largest": 2**63 - 1,
    "float": 0.1,
    "whole float": 1.0,
    "minus zero": -0.0,
    "infinite": float("inf"),
    "text": "Größe 𝄞 \x00",
    "empty text": "",
    "bytes": bytes(range(256)),
    "empty bytes": b"",
    "time": datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
    "early time": datetime(1, 1, 1, tzinfo=UTC),
    "late time": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "": "no name",
}
MESSAGES = [
    Message(),
    Message(body=amqp_message(), format="amqp", message_id="order-7"),
    Message(body=b"text", format="sqs", properties=SQS_ATTRIBUTES),
    Message(properties=EVERY_TYPE),
    Message(body=bytes(range(256)) * 4096),
    Message(
        body=b"\x00",
        message_id="m",
        session_id="s",
        partition_key="s",
        properties={"a": 1},
        time_to_live_ms=2**53,
        scheduled_enqueue_time_ms=STAMP,
        subject="subject",
        correlation_id="correlation",
        content_type="application/json",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply session",
        format="amqp",
        enqueued_sequence_number=2**63 - 1,
    ),
    Message(message_id="", subject="", enqueued_sequence_number=0),
]


def arrow_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return messages as a table that somebody made who knows the schema only."""
    rows = [
        {name: getattr(message, name) for name in SCHEMA.names}
        | {"properties": encode_properties(message.properties) if message.properties else None}
        for message in messages
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def rows_block(
    messages: Sequence[Message], ordinals: Sequence[int], expires: Sequence[int]
) -> bytes:
    count = len(messages)
    entries = [
        (ordinals[at], STAMP, expires[at], at, 0, 0, ARRIVED, MESSAGE) for at in range(count)
    ]
    return encode_entries(entries, [encode(message) for message in messages])


def arrow_block(
    messages: Sequence[Message], ordinals: Sequence[int], expires: Sequence[int]
) -> bytes:
    sessions = np.arange(len(messages))
    batch = arrow_batch(messages)
    return encode_arrow(ordinals, STAMP, ARRIVED, expires, sessions, MESSAGE, batch)


def simple_rows(first: int, rows: Sequence[bytes], session: int = 0) -> Block:
    count = len(rows)
    expires, sessions, kinds = [NEVER] * count, [session] * count, [MESSAGE] * count
    return Block(encode_rows(first, STAMP, STAMP, expires, sessions, kinds, rows))


def simple_arrow(first: int, batch: pa.RecordBatch, session: int = 0) -> Block:
    sessions = np.full(batch.num_rows, session, np.uint64)
    ordinals = range(first, first + batch.num_rows)
    return Block(encode_arrow(ordinals, STAMP, STAMP, NEVER, sessions, MESSAGE, conform(batch)))


Maker = Callable[[Sequence[Message], Sequence[int], Sequence[int]], bytes]
both_encodings = pytest.mark.parametrize("make", [rows_block, arrow_block])


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal and of one type: 1, 1.0 and True are three."""
    if isinstance(one, Message) and isinstance(other, Message):
        names = Message.__struct_fields__
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other and repr(one) == repr(other)


# Round trips


@both_encodings
def test_messages_come_back_exactly(make: Maker) -> None:
    count = len(MESSAGES)
    expires = [NEVER] * (count - 1) + [STAMP + 1]
    block = Block(make(MESSAGES, range(5, 5 + count), expires))
    assert block.rows == count
    assert block.contiguous
    for position, message in enumerate(MESSAGES):
        assert same(block.message(position), message)
        assert block.row(position) == encode(message)
        assert block.entry(position)[:4] == (5 + position, STAMP, expires[position], position)
        assert block.position(5 + position) == position
    assert block.position(4) == block.position(5 + count) == -1
    assert same(dict(enumerate(block.messages(0, count))), dict(enumerate(MESSAGES)))
    assert [encode(one) for one in block.messages(2, 4)] == [encode(one) for one in MESSAGES[2:4]]


def test_amqp_sqs_and_arrow_go_through_one_block() -> None:
    batch = pa.record_batch({"subject": ["Arrow"], "body": pa.array([b"\xff\x00"], pa.binary())})
    row = simple_arrow(1, batch).row(0)
    amqp, sqs = MESSAGES[1], MESSAGES[2]
    rows = [encode(amqp), encode(sqs), row]
    block = simple_rows(10, rows)
    assert block.message(0).body == amqp_message()
    assert same(block.message(1).properties, SQS_ATTRIBUTES)
    assert same(block.message(2), Message(subject="Arrow", body=b"\xff\x00"))
    # And on, from there into Arrow and back into rows.
    again = simple_arrow(10, _columns_of(block))
    assert [again.row(position) for position in range(3)] == rows
    assert again.record_batch().equals(block.record_batch())


def _columns_of(block: Block) -> pa.RecordBatch:
    return block.record_batch().select(SCHEMA.names)


@both_encodings
def test_ordinals_may_skip(make: Maker) -> None:
    ordinals = [3, 4, 9, 2**62]
    block = Block(make(MESSAGES[:4], ordinals, [NEVER] * 4))
    assert not block.contiguous
    assert [block.position(ordinal) for ordinal in ordinals] == [0, 1, 2, 3]
    assert [block.position(ordinal) for ordinal in (2, 5, 10, 2**62 + 1)] == [-1] * 4
    assert same(block.message(block.position(9)), MESSAGES[2])
    assert block.record_batch()["ordinal"].to_pylist() == ordinals


@pytest.mark.parametrize("count", [1, 31, 32, 200])
def test_many_rows_are_written_like_few(count: int) -> None:
    rows = [b"x" * at for at in range(count)]
    expires = [NEVER if at % 3 else STAMP + at for at in range(count)]
    sessions = [2**64 - 1 - at for at in range(count)]
    kinds = [at % 3 for at in range(count)]
    # Rows of other blocks are always written one by one.
    entries = [
        (7 + at, STAMP, expires[at], sessions[at], 0, 0, 5, kinds[at]) for at in range(count)
    ]
    made = encode_rows(7, STAMP, 5, expires, sessions, kinds, rows)
    assert made == encode_entries(entries, rows)


def test_session_hashes_use_all_bits() -> None:
    highest = 2**64 - 1
    rows = simple_rows(1, [encode(Message())], highest)
    batch = arrow_batch([Message()])
    arrow = simple_arrow(1, batch, highest)
    assert rows.entry(0)[3] == arrow.entry(0)[3] == highest


@both_encodings
def test_a_body_of_one_megabyte(make: Maker) -> None:
    body = np.random.default_rng(1).bytes(1 << 20)
    block = Block(make([Message(body=body), Message(), Message(body=body[::-1])], [1, 2, 3],
                       [NEVER] * 3))  # fmt: skip
    assert block.message(0).body == body
    assert block.message(1).body == b""
    assert block.message(2).body == body[::-1]


def test_a_time_of_another_zone_comes_back_as_the_same_moment() -> None:
    moment = datetime(2024, 7, 1, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    row = encode(Message(properties={"at": moment}))
    block = simple_rows(1, [row])
    assert block.message(0).properties["at"] == moment


# Record batches


@both_encodings
def test_a_block_is_a_record_batch(make: Maker) -> None:
    count = len(MESSAGES)
    block = Block(make(MESSAGES, range(1, count + 1), [NEVER, STAMP + 5] + [NEVER] * (count - 2)))
    batch = block.record_batch()
    assert batch.schema.equals(LOG_SCHEMA)
    batch.validate(full=True)
    assert batch["ordinal"].to_pylist() == list(range(1, count + 1))
    assert batch["enqueued_time_ms"].to_pylist() == [STAMP] * count
    # Bus time is not shown: a row lives for so long after its stamp as after its arrival.
    shown = STAMP + (STAMP + 5 - ARRIVED)
    assert batch["expires_at_ms"].to_pylist() == [None, shown] + [None] * (count - 2)
    assert batch.select(SCHEMA.names).equals(arrow_batch(MESSAGES))


def test_the_schema_names_the_fields_of_a_message() -> None:
    # What only AMQP clients can read of a message, and only the bus may write, stays in rows.
    in_rows = {"as_sent", "rewritten", "dead_letter_of", "received_before"}
    assert in_rows | {*SCHEMA.names} == set(Message.__struct_fields__)


def test_what_stays_in_rows_comes_back_exactly() -> None:
    message = Message(
        as_sent=b"\x00", rewritten=True, dead_letter_of=(2**63 - 1, 0), received_before=3
    )
    assert same(simple_rows(1, [encode(message)]).message(0), message)


def test_batches_of_the_same_kinds_are_taken() -> None:
    batch = pa.record_batch(
        {
            "body": pa.array([b"a", None], pa.large_binary()),
            "subject": pa.array(["x", "y"]).dictionary_encode(),
            "message_id": pa.array(["1", None], pa.large_string()),
            "time_to_live_ms": pa.array([7, None], pa.int32()),
            "to": pa.nulls(2),
            "properties": pa.array([encode_properties({"k": b"v"}), None], pa.binary_view()),
        }
    )
    block = simple_arrow(1, batch)
    assert same(block.message(0), Message(
        body=b"a", subject="x", message_id="1", time_to_live_ms=7, properties={"k": b"v"}
    ))  # fmt: skip
    assert same(block.message(1), Message(subject="y"))


def test_a_slice_of_a_batch_takes_its_own_bytes_only() -> None:
    batch = arrow_batch([Message(body=bytes([i]) * 1000) for i in range(100)])
    payload = encode_arrow([1, 2], STAMP, STAMP, NEVER, 0, MESSAGE, conform(batch.slice(50, 2)))
    assert len(payload) < 8000
    assert [Block(payload).message(i).body[0] for i in range(2)] == [50, 51]


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"bodies": [b"x"]}),
        pa.record_batch({"body": [1]}),
        pa.record_batch({"subject": [b"bytes"]}),
        pa.record_batch({"time_to_live_ms": [1.0]}),
        pa.record_batch({"time_to_live_ms": pa.array([2**63], pa.uint64())}),
        pa.record_batch([pa.array([b"x"]), pa.array([b"y"])], names=["body", "body"]),
        pa.record_batch(
            [pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"),
                                                    pa.py_buffer(b"\xff")])],
            names=["subject"],
        ),
    ],
    ids=["unknown", "number", "bytes", "float", "large", "twice", "not UTF-8"],
)  # fmt: skip
def test_other_batches_are_refused(batch: pa.RecordBatch) -> None:
    with pytest.raises(InvalidArgument):
        conform(batch)


# Damage


def everything(payload: bytes) -> list[Any]:
    """Return all that can be read of a block."""
    block = Block(payload)
    return [
        (*block.entry(p)[:4], block.row(p), repr(block.message(p))) for p in range(block.rows)
    ] + [block.record_batch().to_pylist()]


@both_encodings
def test_a_flipped_bit_is_never_served(make: Maker) -> None:
    payload = make([Message(body=b"ab", properties={"k": 1}), MESSAGES[5]], [1, 3], [NEVER, STAMP])
    good = everything(payload)
    noticed = 0
    for at in range(len(payload)):
        for bit in range(8):
            damaged = bytearray(payload)
            damaged[at] ^= 1 << bit
            try:
                assert everything(bytes(damaged)) == good, f"bit {bit} of byte {at}"
            except Damaged:
                noticed += 1
    assert noticed == 8 * len(payload)


@both_encodings
def test_a_flipped_bit_in_one_of_many_messages_is_never_served(make: Maker) -> None:
    payload = make([Message(body=b"ab", properties={"k": 1}), MESSAGES[5]], [1, 3], [NEVER, STAMP])
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            Block(bytes(damaged)).messages(0, 2)


@both_encodings
def test_a_cut_block_is_never_served(make: Maker) -> None:
    payload = make([Message(body=b"ab"), MESSAGES[5]], [1, 3], [NEVER, STAMP])
    for length in range(len(payload)):
        with pytest.raises(Damaged):
            everything(payload[:length])
    with pytest.raises(Damaged):
        everything(payload + b"\0")


@both_encodings
def test_the_index_can_be_read_while_the_body_is_damaged(make: Maker) -> None:
    payload = make([Message(body=b"abcd")], [7], [STAMP])
    damaged = payload.replace(b"abcd", b"abcx")
    block = Block(damaged)
    assert block.entry(0)[:3] == (7, STAMP, STAMP)
    for read in (lambda: block.message(0), lambda: block.row(0), block.record_batch):
        with pytest.raises(Damaged):
            read()


def _arrow_payload(body: bytes, rows: int = 1) -> bytes:
    """Return a block with that body and checksums that match."""
    ordinals = range(1, rows + 1)
    batch = arrow_batch([Message()] * rows)
    payload = encode_arrow(ordinals, STAMP, STAMP, NEVER, 0, MESSAGE, batch)
    index = payload[HEADER.size : HEADER.size + ENTRY.size * rows]
    return HEADER.pack(b"OB", 1, ARROW, rows, crc32(index), checksum(body)) + index + body


def _stream(schema: pa.Schema, *batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_bytes_with_a_good_checksum_are_still_looked_at() -> None:
    one = arrow_batch([Message()])
    nothing = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in SCHEMA], schema=SCHEMA)
    unreadable = conform(pa.record_batch({"properties": [b"\xc1"]}))
    no_map = conform(pa.record_batch({"properties": [b"\x01"]}))
    no_text = conform(pa.record_batch({"properties": [b"\x81\xa1k\xa1\xff"]}))
    stream = _stream(SCHEMA, one)
    bodies = [
        b"",
        b"no stream",
        _stream(SCHEMA),
        _stream(SCHEMA, arrow_batch([Message()] * 2)),
        _stream(SCHEMA, nothing),
        _stream(SCHEMA, unreadable),
        _stream(SCHEMA, no_map),
        _stream(SCHEMA, no_text),
        _stream(one.select(["body"]).schema, one.select(["body"])),
        *(stream[:length] for length in range(0, len(stream) - 8, 7)),
    ]
    for body in bodies:
        with pytest.raises(Damaged):
            Block(_arrow_payload(body)).message(0)
    assert same(Block(_arrow_payload(stream)).message(0), Message())


def test_garbled_streams_with_good_checksums_never_crash() -> None:
    """Arrow's own reader stands behind the checksum; nothing but Damaged may come out of it."""
    stream = _stream(SCHEMA, arrow_batch([MESSAGES[5]]))
    random = np.random.default_rng(7)
    for _ in range(1_000):
        garbled = bytearray(stream)
        for at in random.integers(0, len(stream), 3):
            garbled[at] ^= int(random.integers(1, 256))
        with contextlib.suppress(Damaged):
            Block(_arrow_payload(bytes(garbled))).message(0)


def test_rows_that_are_no_messages_are_damaged() -> None:
    no_text = encode(Message(subject="abc")).replace(b"abc", b"\xff\xff\xff")
    nested = encode([b"", None, None, None]) + b"\x81\xa1k" + b"\x91" * 100_000 + b"\xc0"
    nested = b"\x95" + nested[1:]
    for row in (b"\xc1", b"\x91", encode({"a": 1}), encode([1]), b"\x90\x90", no_text, nested):
        with pytest.raises(Damaged):
            simple_rows(1, [row]).message(0)
        with pytest.raises(Damaged):
            simple_rows(1, [row]).messages(0, 1)


def test_a_number_that_no_column_holds_is_damaged() -> None:
    row = encode(Message(enqueued_sequence_number=2**64 - 1))
    with pytest.raises(Damaged):
        simple_rows(1, [row]).record_batch()


def test_a_block_without_rows_is_damaged() -> None:
    with pytest.raises(Damaged):
        Block(HEADER.pack(b"OB", 1, ROWS, 0, 0, 0))


def test_pyarrow_is_loaded_by_those_who_use_it_only() -> None:
    check = "import sys, onibus; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
