"""Messages: what AMQP clients send, as others see it; and what they get back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus._pyamqp._decode import decode_payload
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from onibus import Bus, Message, ReceivedMessage
from onibus.core.errors import InvalidArgument, MessageTooLarge, Refused
from onibus.core.limits import COUNTER_BITS_PARTITIONED
from onibus.core.path.admit import admit
from onibus.core.settings import QueueSettings
from onibus.gateway.forwarding import DEAD_LETTER_SOURCE, DEAD_LETTER_SOURCE_ID
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.decode import Decimal, Symbol, Timestamp
from onibus.protocols.amqp.errors import AmqpError, DecodeError
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.incoming import (
    _read_any,
    read_batch,
    read_message,
)
from onibus.protocols.amqp.service_bus.outgoing import _write_any, write_message
from onibus.protocols.amqp.service_bus.receiver import tag_of
from tests.bus_helpers import run

texts = st.text(max_size=20)


def properties(*values: Any) -> bytes:
    return sections.section(sections.PROPERTIES, to.list_([to.encode(one) for one in values]))


def application(**values: Any) -> bytes:
    return sections.section(sections.APPLICATION_PROPERTIES, to.encode(values))


def read_by_others(content: bytes) -> Any:
    """Return a message as another codec reads it."""
    return decode_payload(memoryview(content))


def received(message: Message, **more: Any) -> ReceivedMessage:
    return ReceivedMessage(message=message, sequence_number=7, enqueued_time_ms=1_000, **more)


def _both_ways(payload: bytes) -> list[Message | None]:
    """Return the message as it is read the usual way and the long one; None where it is refused."""
    found: list[Message | None] = []
    for read in (read_message, _read_any):
        try:
            found.append(read(payload))
        except (AmqpError, Refused):
            found.append(None)
    return found


_values = st.lists(st.one_of(st.none(), texts), max_size=13)
_named = st.dictionaries(texts, st.one_of(texts, st.integers(0, 300)), max_size=3)


@given(st.binary(max_size=600), _values, st.none() | _named, st.booleans())
def test_the_short_way_and_the_long_one_agree(
    body: bytes, values: list[Any], named: dict[str, Any] | None, first: bool
) -> None:
    payload = properties(*values)
    if named is not None:
        payload = application(**named) + payload if first else payload + application(**named)
    payload += sections.data_section(body)
    short, long = _both_ways(payload)
    assert short == long
    assert short is not None
    assert short.body == body


@settings(max_examples=1_000)
@given(
    st.sampled_from((("id",), ("id", *[None] * 12), ("id", None, "to"), (None, None))),
    st.booleans(),
    st.integers(0, 60),
    st.integers(0, 255),
)
def test_both_ways_agree_on_a_byte_that_is_another_one(
    values: tuple[Any, ...], with_named: bool, place: int, byte: int
) -> None:
    payload = properties(*values) + (application(a=1, b="x") if with_named else b"")
    payload += sections.data_section(b"body")
    payload = payload[:place] + bytes((byte,)) + payload[place + 1 :]
    short, long = _both_ways(payload)
    assert short == long


@pytest.mark.parametrize("locked_until_ms", [None, 2_000])
@pytest.mark.parametrize("partition", [0, 3])
def test_who_receives_is_told_the_partition(partition: int, locked_until_ms: int | None) -> None:
    message = read_message(properties("id") + sections.data_section(b"x"))
    found = received(message, locked_until_ms=locked_until_ms)
    found.sequence_number += partition << COUNTER_BITS_PARTITIONED
    annotations = read_by_others(write_message(found)).message_annotations
    assert annotations[b"x-opt-sequence-number"] == found.sequence_number
    assert annotations.get(b"x-opt-partition-id", 0) == partition


_moments = st.none() | st.integers(1, 2**50)


@given(
    st.builds(
        Message,
        body=st.binary(max_size=300),
        message_id=st.none() | texts,
        partition_key=st.none() | texts,
        time_to_live_ms=st.none() | st.integers(1, 2**53),
        scheduled_enqueue_time_ms=_moments,
        enqueued_sequence_number=st.none() | st.integers(0, 2**63 - 1),
        as_sent=st.sampled_from((b"", properties("id"), application(a=1), properties("id", None))),
        rewritten=st.booleans(),
        hop_count=st.sampled_from((0, 0, 1)),
        properties=st.sampled_from(({}, {DEAD_LETTER_SOURCE_ID: "1", DEAD_LETTER_SOURCE: "q"})),
    ),
    st.sampled_from((0, 0, 3)),
    _moments,
    _moments,
    st.sampled_from(("locked", "active", "deferred locked")),
)
def test_messages_are_written_the_same_both_ways(
    message: Message, deliveries: int, until: int | None, expires: int | None, state: str
) -> None:
    found = received(
        message,
        delivery_count=deliveries,
        locked_until_ms=until,
        expires_at_ms=expires,
        state=state,
    )
    assert write_message(found) == _write_any(found)


def test_what_is_cut_short_is_refused() -> None:
    first, second = properties("id", None, "to"), sections.data_section(b"x" * 20)
    payload = first + second
    for length in range(1, len(payload)):
        if length != len(first):
            with pytest.raises((DecodeError, InvalidArgument)):
                read_message(payload[:length])


def test_values_of_all_types_are_known_or_kept() -> None:
    given_values = {
        "text": "x",
        "symbol": Symbol("s"),
        "time": Timestamp(1_000),
        "late": Timestamp(2**62),
        "id": UUID(int=1),
        "number": 2**40,
        "large": 2**64 - 1,
        "decimal": Decimal(0x94, b"\0" * 16),
        "nothing": None,
    }
    message = read_message(application(**given_values) + sections.data_section(b""))
    assert message.properties == {
        "text": "x",
        "symbol": "s",
        "time": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "id": str(UUID(int=1)),
        "number": 2**40,
        "nothing": None,
    }
    # Changed by a rule: what it did not touch is as it was sent, types unknown to us included.
    changed = replace(message, properties={**message.properties, "text": "y"}, rewritten=True)
    written = write_message(received(changed))
    found = {code: value for code, _, value, _ in sections.split(written)}
    told = sections.map_at(written, found[sections.APPLICATION_PROPERTIES])
    assert told == {**given_values, "text": "y"}
    removed = replace(changed, properties={"number": 1})
    written = write_message(received(removed))
    found = {code: value for code, _, value, _ in sections.split(written)}
    told = sections.map_at(written, found[sections.APPLICATION_PROPERTIES])
    assert set(told) == {"number", "late", "large", "decimal"}


@given(
    st.builds(
        Message,
        body=st.binary(max_size=300),
        message_id=st.text(min_size=1, max_size=9),
        session_id=st.one_of(st.none(), texts),
        subject=st.one_of(st.none(), texts),
        correlation_id=st.one_of(st.none(), texts),
        content_type=st.one_of(st.none(), texts),
        to=st.one_of(st.none(), texts),
        reply_to=st.one_of(st.none(), texts),
        reply_to_session_id=st.one_of(st.none(), texts),
        partition_key=st.one_of(st.none(), texts),
        properties=st.dictionaries(
            texts,
            st.one_of(
                st.none(),
                st.booleans(),
                texts,
                st.binary(max_size=9),
                st.integers(-(2**63), 2**63 - 1),
                st.floats(allow_nan=False),
            ),
            max_size=4,
        ),
    )
)
def test_a_message_that_did_not_come_over_amqp_comes_back_as_it_was(message: Message) -> None:
    written = write_message(received(message))
    again = read_message(written)
    assert replace(again, as_sent=b"") == message
    # And another codec can read it.
    theirs = read_by_others(written)
    assert b"".join(theirs.data) == message.body


def test_dead_letters_and_lives_are_told() -> None:
    sent = properties("id") + application(DeadLetterReason="mine", n=1) + sections.data_section(b"")
    message = read_message(
        sections.section(sections.HEADER, to.list_([to.TRUE, to.NULL, to.uint(500)])) + sent
    )
    assert message.time_to_live_ms == 500
    written = write_message(
        received(message, dead_letter_reason="why", delivery_count=2, expires_at_ms=1_300)
    )
    theirs = read_by_others(written)
    assert theirs.application_properties == {b"n": 1, b"DeadLetterReason": b"why"}
    assert (theirs.header.durable, theirs.header.ttl, theirs.header.delivery_count) == (
        True,
        300,
        2,
    )
    assert theirs.properties.absolute_expiry_time - theirs.properties.creation_time == 300
    assert theirs.properties.message_id == b"id"


def test_ids_of_all_types_are_texts_here_and_keep_their_type_there() -> None:
    for value, text in ((UUID(int=3), str(UUID(int=3))), (5, "5"), (b"\x0f", "0f")):
        message = read_message(properties(value) + sections.data_section(b""))
        assert message.message_id == text
        written = write_message(received(replace(message, rewritten=True)))
        theirs = read_by_others(written)
        assert theirs.properties.message_id == value


@pytest.mark.parametrize(
    "payload",
    [
        properties(["no id"]),
        properties("id", None, 7),
        sections.section(sections.HEADER, to.list_([to.NULL, to.NULL, to.string("x")])),
        sections.section(sections.ANNOTATIONS, to.fields({"x-opt-partition-key": to.uint(7)})),
        sections.section(sections.APPLICATION_PROPERTIES, to.encode({7: 1})),
        sections.section(sections.DATA, to.string("no bytes")),
        sections.section(0x79, to.NULL),
        to.encode("no section"),
    ],
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises((DecodeError, InvalidArgument)):
        read_message(payload)


def test_a_batch_is_its_messages() -> None:
    one = properties("a") + sections.data_section(b"1")
    batch = properties("a") + sections.data_section(one) + sections.data_section(one)
    assert [message.body for message in read_batch(batch)] == [b"1", b"1"]


def test_a_tag_is_the_token_as_net_writes_a_guid() -> None:
    token = bytes(range(16))
    assert tag_of(token) == UUID(bytes=token).bytes_le


@run
async def test_what_was_sent_survives_a_resubmission_under_a_new_id() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        sent = properties("id", b"user") + application(big=2**64 - 1) + sections.data_section(b"x")
        await bus.send("q", read_message(sent))
        async with bus.receiver("q") as receiver:
            [message] = await receiver.receive()
            await receiver.dead_letter(message, reason="no", properties={"tried": 1})
            await bus.resubmit("q", [message.sequence_number])
            [again] = await receiver.receive()
        theirs = read_by_others(write_message(again))
        assert theirs.properties.message_id.startswith(b"id/resubmitted/")
        assert theirs.properties.user_id == b"user"
        assert theirs.application_properties == {b"big": 2**64 - 1, b"tried": 1}


@pytest.mark.promise("D11")
@pytest.mark.parametrize("ids", [(), (None,), (None, b"user")])
def test_a_message_without_an_id_is_shown_with_one_and_has_none(ids: tuple[Any, ...]) -> None:
    """What was sent around it stays as it was."""
    body = sections.data_section(b"x")
    around = sections.section(sections.ANNOTATIONS, to.encode({Symbol("own"): "kept"}))
    payload = around + (properties(*ids) if ids else b"") + application(big=2**64 - 1) + body
    nameless = read_message(payload)
    theirs = read_by_others(write_message(received(nameless)))
    shown = received(nameless)
    told = theirs.properties.message_id
    assert (len(told), int(told[16:], 16)) == (32, shown.sequence_number)
    assert int(told[:16], 16) == shown.enqueued_time_ms
    assert theirs.properties.user_id == (b"user" if len(ids) > 1 else None)
    assert theirs.application_properties == {b"big": 2**64 - 1}
    assert theirs.message_annotations[b"own"] == b"kept"
    assert nameless.message_id is None


@pytest.mark.promise("B7")
@given(
    st.dictionaries(texts, st.one_of(texts, st.integers(-(2**31), 2**31 - 1), st.booleans())),
    st.lists(st.one_of(st.none(), st.text(min_size=1, max_size=20)), min_size=1, max_size=8),
    st.binary(min_size=100, max_size=2_000),
)
def test_what_fits_the_link_fits_the_entity(
    values: dict[str, Any], fields: list[Any], body: bytes
) -> None:
    """Properties are kept twice, and counted once."""
    payload = properties(*fields) + application(**values) + sections.data_section(body)
    message = read_message(payload)
    admit(message, QueueSettings(max_message_bytes=len(payload)), b"secret" * 8)
    with pytest.raises(MessageTooLarge):
        admit(message, QueueSettings(max_message_bytes=len(payload) - 200), b"secret" * 8)
