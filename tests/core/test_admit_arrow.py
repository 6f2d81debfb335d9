"""Admission of columns and admission of messages agree on everything."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onibus.core.arrow_block import SCHEMA, EncodedBody, messages_of
from onibus.core.block import read_header
from onibus.core.errors import Damaged, InvalidArgument, MessageTooLarge, Refused
from onibus.core.message import Message, encode, encode_properties
from onibus.core.path.admit import Prepared, admit
from onibus.core.path.admit_arrow import (
    FOREVER,
    Body,
    PreparedBatch,
    admit_arrow,
    decode_prepared,
)
from onibus.core.settings import LogSettings, QueueSettings, TopicSettings, make

SECRET = b"k" * 32

SETTINGS: list[LogSettings] = [
    make({}, QueueSettings),
    make({"requires_duplicate_detection": True}, QueueSettings),
    make({"requires_duplicate_detection": True, "enable_partitioning": True}, QueueSettings),
    make({"enable_partitioning": True, "default_time_to_live_ms": 1_000}, QueueSettings),
    make({"requires_session": True, "max_message_bytes": 160}, QueueSettings),
    make({"fifo": True}, QueueSettings),
    make({"fifo": True, "content_based_deduplication": True}, QueueSettings),
    make(
        {
            "fifo": True,
            "content_based_deduplication": True,
            "content_matches_any_id": True,
            "deduplication_scope": "messageGroup",
        },
        QueueSettings,
    ),
    make({"requires_duplicate_detection": True}, TopicSettings),
]


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as a batch; fields that no row has are columns that it lacks."""
    names = {name for row in rows for name in row} or {"body"}
    columns = {}
    for field in SCHEMA:
        if field.name in names:
            values = [row.get(field.name) for row in rows]
            columns[field.name] = pa.array(values, field.type)
    return pa.record_batch(columns)


def as_message(row: dict[str, Any]) -> Message:
    (message,) = messages_of(
        pa.RecordBatch.from_pylist(
            [{"format": "", "hop_count": 0, "body": b""} | row], schema=SCHEMA
        )
    )
    return message


def one_by_one(rows: list[dict[str, Any]], given: LogSettings) -> list[Prepared] | Refused:
    try:
        return [admit(as_message(row), given, SECRET) for row in rows]
    except Refused as error:
        return error


def together(rows: list[dict[str, Any]], given: LogSettings) -> PreparedBatch | Refused:
    try:
        return admit_arrow(batch_of(rows), given, SECRET)
    except Refused as error:
        return error


def identities_of(batch: PreparedBatch) -> list[tuple[bytes, ...]]:
    """Return the identities of each row."""
    pairs = list(zip(batch.owners, batch.hashes, strict=True))
    return [tuple(hash for owner, hash in pairs if owner == at) for at in range(len(batch))]


ids = st.one_of(
    st.none(),
    st.sampled_from(["a", "b", "ab", "", "é", "x" * 128, "é" * 128, "x" * 129]),
    st.text(max_size=20, alphabet="a\0é€😀"),
)
#: Mostly what is good: a row with many chances to be bad would hide all but the first.
good_ids = st.one_of(st.none(), st.sampled_from(["a", "b", "ab", "é" * 128]))
properties = st.dictionaries(
    st.text(max_size=3, alphabet="abc"),
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3)),
    max_size=3,
)
rows_of = st.fixed_dictionaries(
    {},
    optional={
        "body": st.binary(max_size=40),
        "message_id": st.one_of(good_ids, good_ids, ids),
        "session_id": st.one_of(good_ids, st.just("s"), ids),
        "partition_key": st.one_of(st.none(), st.none(), st.none(), good_ids, ids),
        "time_to_live_ms": st.sampled_from([None, None, 1, 2_000, 2**53, 0, -1, 2**53 + 1]),
        "scheduled_enqueue_time_ms": st.sampled_from([None, None, 0, 2**40, -1, 2**54]),
        "subject": st.one_of(st.none(), st.text(max_size=40, alphabet="sé")),
        "format": st.sampled_from(["", "", "amqp", "sqs", "other"]),
        "enqueued_sequence_number": st.sampled_from([None, 0, 127, 128, 65_535, 65_536, 2**40]),
        "hop_count": st.sampled_from([0, 0, 0, 4, 5, -1]),
        "properties": st.one_of(
            st.none(),
            properties.map(encode_properties),
            st.sampled_from([b"\x80", b"", b"\x01", b"\x81\x01\x01", b"\x81\xa1a\x90"]),
        ),
    },
)


@settings(max_examples=400, deadline=None)
@given(st.lists(rows_of, min_size=1, max_size=6), st.sampled_from(SETTINGS))
def test_columns_and_messages_get_the_same_verdict(
    rows: list[dict[str, Any]], given_settings: LogSettings
) -> None:
    try:
        singly = one_by_one(rows, given_settings)
    except Damaged:
        # Properties that are no map are no message at all; columns have to refuse them.
        assert isinstance(together(rows, given_settings), Refused)
        return
    bulk = together(rows, given_settings)
    if isinstance(singly, Refused):
        assert type(bulk) is type(singly)
        assert str(singly) in str(bulk)
        return
    assert isinstance(bulk, PreparedBatch)
    assert identities_of(bulk) == [prepared.identities for prepared in singly]
    assert bulk.keys is not None
    assert bulk.keys.to_pylist() == [prepared.key for prepared in singly]
    lives = [FOREVER if one.time_to_live_ms is None else one.time_to_live_ms for one in singly]
    assert bulk.ttls.tolist() == lives
    assert bulk.sizes.tolist() == [len(prepared.row) for prepared in singly]
    assert messages_of(bulk.columns) == [prepared.message for prepared in singly]


@settings(max_examples=50, deadline=None)
@given(st.lists(rows_of, min_size=1, max_size=6), st.sampled_from(SETTINGS))
def test_a_prepared_batch_survives_being_staged(
    rows: list[dict[str, Any]], given_settings: LogSettings
) -> None:
    bulk = together(rows, given_settings)
    if isinstance(bulk, Refused):
        return
    chosen = list(range(0, len(rows), 2))
    assert identities_of(bulk.take(chosen)) == [identities_of(bulk)[at] for at in chosen]
    for apart in (False, True):
        half = len(rows) // 2
        bodies = [EncodedBody(bulk.columns.slice(0, half)), EncodedBody(bulk.columns.slice(half))]
        kept = [bytes(body.staged) for body in bodies[not half :]]
        staged = [Body(at, read_header(one)[1], len(one)) for at, one in enumerate(kept)]
        read = decode_prepared(bulk.encode(apart), staged if apart else [], kept.__getitem__)
        assert (read.hashes, list(read.owners)) == (bulk.hashes, list(bulk.owners))
        assert read.placing.equals(bulk.placing)
        assert read.columns.equals(bulk.columns)
        assert read.ttls.tolist() == bulk.ttls.tolist()
        assert read.sizes.tolist() == bulk.sizes.tolist()


def test_sizes_are_those_of_rows_of_every_length() -> None:
    for length in (0, 31, 32, 255, 256, 65_535, 65_536):
        row = {"body": b"b" * length, "subject": "s" * length, "message_id": "m"}
        bulk = admit_arrow(batch_of([row]), SETTINGS[0], SECRET)
        assert bulk.sizes.tolist() == [len(encode(as_message(row)))]


@pytest.mark.parametrize("bad", [0, 3, 9])
def test_the_error_names_the_row(bad: int) -> None:
    rows: list[dict[str, Any]] = [{"message_id": f"{at}"} for at in range(10)]
    rows[bad]["message_id"] = ""
    with pytest.raises(InvalidArgument, match=f"^row {bad}: message_id is empty"):
        admit_arrow(batch_of(rows), SETTINGS[0], SECRET)


def test_the_first_bad_row_is_named_whatever_is_wrong_with_it() -> None:
    rows: list[dict[str, Any]] = [
        {"body": b""},
        {"properties": b"\x81\xa1a\x90"},
        {"time_to_live_ms": 0},
    ]
    with pytest.raises(InvalidArgument, match=r"^row 1: property 'a'"):
        admit_arrow(batch_of(rows), SETTINGS[0], SECRET)
    rows[1] = {}
    with pytest.raises(InvalidArgument, match=r"^row 2: time_to_live_ms"):
        admit_arrow(batch_of(rows), SETTINGS[0], SECRET)


def test_properties_that_take_more_than_ours_would_count_as_they_are() -> None:
    # A map of 16 bits where 4 would do: stored as it came, so that is what it takes.
    wide = b"\xde\x00\x01\xa1a\x01"
    tight = make(
        {"max_message_bytes": len(encode(as_message({"properties": wide})))}, QueueSettings
    )
    with pytest.raises(MessageTooLarge, match=r"^row 0: "):
        admit_arrow(batch_of([{"properties": wide}]), tight, SECRET)


def test_a_staged_batch_that_is_none_is_damage() -> None:
    good = admit_arrow(batch_of([{"body": b"x"}]), SETTINGS[0], SECRET)
    whole, apart = good.encode(apart=False), good.encode(apart=True)
    for content in (b"", whole[:40], batch_bytes(batch_of([{"body": b"x"}])), apart):
        with pytest.raises(Damaged):
            decode_prepared(memoryview(content), [], lambda block: b"")
    staged = bytes(EncodedBody(good.columns).staged)
    damaged = staged[:-20] + bytes([staged[-20] ^ 1]) + staged[-19:]
    for payload in (b"", staged[:40], damaged):
        with pytest.raises(Damaged):
            print(decode_prepared(apart, [Body(1, 1, 1)], {1: payload}.__getitem__).columns)


def batch_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
