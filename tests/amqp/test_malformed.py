"""What fuzzing has found: each was a fault of ours, and is the peer's now, or none."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from onibus import Bus, Message, ReceivedMessage
from onibus.protocols.amqp import decode as decoding
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import VALUES_MAX, decode
from onibus.protocols.amqp.errors import DecodeError
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.incoming import read_message
from onibus.protocols.amqp.service_bus.outgoing import write_message
from tests.amqp.peer import Peer, greeted
from tests.amqp.raw_client import attach, message, transfer
from tests.bus_helpers import run

_PROPERTIES = sections.section(sections.PROPERTIES, to.list_([to.string("id")]))
_DATA = sections.data_section(b"x")


def test_half_of_a_pair_is_no_character() -> None:
    for code in (0xD800, 0xDFFF):
        with pytest.raises(DecodeError):
            decode(b"\x73" + code.to_bytes(4, "big"))
    assert decode(b"\x73\0\0\xd7\xff")[0] == "\ud7ff"


@run
async def test_a_link_whose_name_cannot_be_said_ends_the_connection() -> None:
    async with greeted() as (peer, _):
        fields = [b"\x73\0\0\xd8\0", to.uint(0), to.boolean(say.SENDER)]
        peer.say(say.performative(say.ATTACH, fields))
        [last] = peer.heard()
        assert (last.code, last.condition) == (say.CLOSE, "amqp:decode-error")


def _nested(of: bytes, counts: tuple[int, ...]) -> bytes:
    content = of
    for count in counts:
        content = to.list_([content] * count)
    return content


@pytest.mark.parametrize(
    "content",
    [
        _nested(to.NULL, (VALUES_MAX + 1,)),
        _nested(to.EMPTY_LIST, (1_000, 201)),
        # Elements that take no bytes.
        _nested(b"\xf0\0\0\0\x05\0\0\x04\0\x45", (200,)),
        to.map_([to.uint(n) for n in range(VALUES_MAX + 2)]),
    ],
)
def test_values_that_would_take_much_memory_are_refused(content: bytes) -> None:
    for one in (content, to.described(7, content), to.list_([content])):
        with pytest.raises(DecodeError, match=f"{VALUES_MAX} values"):
            decode(one)
    # Each is counted for itself.
    for _ in range(3):
        assert len(decode(_nested(to.NULL, (1_000, 19)))[0]) == 19
    assert len(decoding.decode(to.described(7, _nested(to.NULL, (15_000,))))[0].value) == 15_000


@pytest.mark.parametrize(
    "payload",
    [
        # a descriptor that is no number and no text
        b"\x00\x45\x40",
        b"\x00\xc1\x01\x00\x40",
        # sections twice, a body of two kinds, or in two places
        _DATA + _PROPERTIES + _DATA,
        _PROPERTIES * 2,
        _DATA + sections.section(sections.VALUE, to.NULL),
        sections.section(sections.VALUE, to.NULL) * 2,
        # an array where a list is asked for
        sections.section(sections.PROPERTIES, to.longs([1, 2])) + _DATA,
    ],
)
def test_messages_that_are_none_are_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        read_message(payload)


def test_one_client_puts_delivery_annotations_last() -> None:
    annotated = sections.section(sections.DELIVERY_ANNOTATIONS, to.fields({"x": to.NULL}))
    taken = read_message(_PROPERTIES + _DATA * 2 + annotated)
    assert (taken.message_id, taken.body) == ("id", _DATA * 2)
    assert read_message(_PROPERTIES + _DATA + annotated).body == b"x"


@pytest.mark.parametrize("properties", [b"\xc0\x00", to.longs([1, 2]), to.string("x"), b"\x56\0"])
@run
async def test_requests_with_strange_properties_end_their_link(properties: bytes) -> None:
    async with greeted() as (peer, _):
        peer.open_requests("q/$management")
        peer.say(transfer(101, 1, sections.section(sections.PROPERTIES, properties)))
        [detached] = [one for one in peer.heard() if one.code == say.DETACH]
        assert detached.condition == "amqp:decode-error"


@run
async def test_a_coordinator_takes_no_strange_sections() -> None:
    async with greeted() as (peer, _):
        coordinator = say.performative(say.COORDINATOR, [])
        peer.say(attach(0, say.SENDER, "me", "", terminus=coordinator))
        peer.heard()
        peer.say(transfer(0, 1, b"\x00\x45\x40"))
        [told] = await peer.hear(say.DISPOSITION)
        assert told.fields[4].value[0].value[0] == "amqp:decode-error"


def test_what_a_receiver_changed_counts_though_its_type_was_unknown() -> None:
    sent = sections.section(
        sections.APPLICATION_PROPERTIES,
        to.text_map({"n": to.described(9, to.int_(1)), "kept": to.described(9, to.int_(2))}),
    )
    taken = read_message(sent + _DATA)
    changed = replace(taken, properties={"n": 5}, rewritten=True)
    told = write_message(ReceivedMessage(message=changed, sequence_number=1, enqueued_time_ms=1))
    found = {code: value for code, _, value, _ in sections.split(told)}
    properties, _ = decode(told, found[sections.APPLICATION_PROPERTIES])
    assert properties["n"] == 5
    assert properties["kept"].value == 2


@pytest.mark.parametrize(
    ("entity", "operation", "body", "status"),
    [
        (
            "t/subscriptions/u",
            "add-rule",
            {
                "rule-name": to.string("r"),
                "rule-description": to.encode({"correlation-filter": {"properties": [1]}}),
            },
            400,
        ),
        ("q", "get-message-sessions", {"skip": to.ulong(2**63), "top": to.int_(1)}, 204),
    ],
)
@run
async def test_requests_that_are_wrong_are_told_so(
    entity: str, operation: str, body: dict[str, bytes], status: int
) -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        await bus.create_topic("t")
        await bus.create_subscription("t", "u")
        peer = Peer(bus)
        peer.greet()
        peer.heard()
        peer.open_requests(f"{entity}/$management")
        told: tuple[int, Any] = await peer.request(operation, body)
        assert told[0] == status


@run
async def test_a_message_that_is_refused_leaves_the_link() -> None:
    async with greeted() as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.say(transfer(0, 1, _DATA + _PROPERTIES * 2))
        peer.say(transfer(0, 3, message(b"x")))
        told = await peer.hear(say.DISPOSITION, 2)
        assert {one.fields[4].descriptor for one in told} == {say.REJECTED, say.ACCEPTED}
        assert bus.queue("q").active_count == 1
        assert bus.peek("q")[0].message == Message(body=b"x")
