"""Inputs that mean something, for each target: what mutations begin with.

`python -m tests.amqp.fuzz.seeds` writes them to `corpus/`, beside what long runs have found there.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from onibus.gateway import receiving
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import Decimal, Described, Symbol, Timestamp
from onibus.protocols.amqp.frames import EMPTY_FRAME, PROTOCOL_HEADER, SASL, SASL_HEADER, frame
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.client import TRANSFER_DESTINATION
from onibus.protocols.amqp.service_bus.incoming import BATCH_FORMAT
from onibus.protocols.amqp.service_bus.session_receiver import SESSION_FILTER
from onibus.security.sas import make_token
from onibus.shard.replies import KeptReply
from tests.amqp.fuzz.world import NOW_MS, World
from tests.amqp.raw_client import attach, message, transfer
from tests.fuzz.registry import TARGETS, write_corpus

_NAME, _SECRET = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
_FOREVER_S = 1 << 40


def types() -> list[bytes]:
    """Return values of every type, and some inside each other."""
    values = [
        *(None, True, False, 0, 7, -7, 2**31, 2**63, 1.5, "text", "é" * 200, b"bytes", b"x" * 300),
        *(Symbol("symbol"), Timestamp(NOW_MS), UUID(int=3), Decimal(0x94, bytes(16))),
        *([], [1, [2, ["3"]]], {}, {"a": {"b": [None]}}, Described(0x24, []), [1] * 300),
        Described(Symbol("amqp:accepted:list"), [{Symbol("a"): 1}]),
    ]
    others = [
        *(
            b"\x56\x01",
            b"\x72\x3f\0\0\0",
            b"\x73\0\0\0a",
            b"\x55\xff",
            b"\x61\xff\xfe",
            b"\x60\1\2",
        ),
        *(b"\x70\0\0\1\0", b"\x80" + bytes(8), b"\x74" + bytes(4), b"\x84" + bytes(8)),
        *(b"\xe0\x04\x02\x50\x01\x02", b"\xf0\0\0\0\x05\0\0\0\x03\x41"),
        *(b"\xe0\x06\x01\x00\x53\x09\x50\x07", to.symbols(["a", "bc"]), to.longs([1, -1])),
    ]
    return [*map(to.encode, values), *others]


def messages() -> list[bytes]:
    """Return messages, and batches of them."""
    fields = [to.string("id"), to.binary(b"user"), *map(to.string, ("to", "subject", "reply"))]
    fields += [to.uuid(UUID(int=5)), to.symbol("text/plain"), to.NULL]
    fields += [to.timestamp(NOW_MS + 9), to.timestamp(NOW_MS), to.string("a"), to.uint(1)]
    properties = sections.section(sections.PROPERTIES, to.list_([*fields, to.string("b")]))
    annotations = {
        "x-opt-partition-key": to.string("a"),
        "x-opt-scheduled-enqueue-time": to.timestamp(NOW_MS + 9_000),
        "x-opt-own": to.list_([to.int_(1)]),
    }
    application = {"n": to.int_(1), "f": to.double(1.5), "u": to.uuid(UUID(int=1))}
    application |= {"d": b"\x94" + bytes(16), "t": to.timestamp(5), "b": to.TRUE}
    header = [to.TRUE, to.ubyte(4), to.uint(60_000), to.FALSE, to.uint(0)]
    whole = b"".join(
        (
            sections.section(sections.HEADER, to.list_(header)),
            sections.section(sections.DELIVERY_ANNOTATIONS, to.fields({"x": to.NULL})),
            sections.section(sections.ANNOTATIONS, to.fields(annotations)),
            properties,
            sections.section(sections.APPLICATION_PROPERTIES, to.text_map(application)),
            sections.data_section(b"body"),
            sections.section(sections.FOOTER, to.fields({"crc": to.int_(1)})),
        )
    )
    parts = (message(b"body"), message(b"body", "id"), whole)
    others = [
        sections.section(sections.VALUE, to.encode({"a": [1]})),
        sections.section(sections.SEQUENCE, to.encode([1])) * 2,
        sections.data_section(b"x" * 300) + sections.data_section(b"y"),
        b"".join(sections.data_section(part) for part in parts),
    ]
    return [*parts, *others]


_OPEN = say.performative(
    say.OPEN, [to.string("me"), to.string("h"), to.uint(65_536), to.ushort(9), to.uint(60_000)]
)
_BEGIN = say.performative(say.BEGIN, [to.NULL, to.uint(0), to.uint(2_048), to.uint(2_048)])
_COORDINATOR = say.performative(say.COORDINATOR, [to.symbols(["amqp:local-transactions"])])


def _init(mechanism: str, response: bytes) -> bytes:
    chosen = [to.symbol(mechanism), to.binary(response), to.string("h")]
    return say.performative(0x41, chosen)


_PLAIN = _init("PLAIN", f"\0{_NAME}\0{_SECRET}".encode())


def handshakes() -> list[bytes]:
    """Return how connections begin, from their first byte."""
    in_plain = SASL_HEADER + frame(0, _PLAIN, SASL) + PROTOCOL_HEADER + frame(0, _OPEN)
    nameless = SASL_HEADER + frame(0, _init("ANONYMOUS", b""), SASL) + PROTOCOL_HEADER
    token = make_token("sb://h/", _NAME, _SECRET, _FOREVER_S)
    shown = _request("put-token", {}, sections.section(sections.VALUE, to.string(token)), name="q")
    tokens = frame(0, _OPEN) + frame(0, _BEGIN) + frame(0, attach(0, True, "$cbs", "me"))
    tokens += frame(0, attach(1, False, "me", "$cbs")) + frame(0, _flow(0, 10))
    tokens += frame(0, transfer(1, 0, shown)) + frame(0, attach(2, False, "me", "q"))
    return [
        in_plain,
        in_plain + frame(0, _BEGIN) + frame(0, attach(0, False, "me", "q")) + EMPTY_FRAME,
        in_plain + frame(0, say.close(None)),
        nameless + tokens,
        nameless + frame(0, _OPEN) + frame(0, _BEGIN) + frame(0, attach(2, False, "me", "q")),
        PROTOCOL_HEADER + frame(0, _OPEN),
        SASL_HEADER + frame(0, _init("EXTERNAL", b""), SASL),
        b"AMQP\x02\x01\0\0",
    ]


def _flow(handle: int, credit: int, drain: bool = False) -> bytes:
    return say.flow(0, 2_048, 0, (handle, 0, credit, drain))


def _request(operation: str, body: dict[str, bytes], value: bytes = b"", **more: str) -> bytes:
    named = {"operation": operation, **more}
    told = to.text_map({key: to.string(text) for key, text in named.items()})
    return b"".join(
        (
            sections.section(
                sections.PROPERTIES,
                to.list_([to.string("1"), to.NULL, to.NULL, to.NULL, to.string("me")]),
            ),
            sections.section(sections.APPLICATION_PROPERTIES, told),
            value or sections.section(sections.VALUE, to.text_map(body)),
        )
    )


def _token() -> bytes:
    """Return the token by which the first message is held that anybody receives."""
    world = World()
    held = KeptReply()
    receiving.receive(world.broker, "q", 1, 0, held)
    world.settle()
    return bytes(held.value[0].token)


def _requests() -> dict[str, list[dict[str, bytes]]]:
    """Return a body or more for every operation of $management."""
    token = to.array(0x98, [_token()])
    scheduled = sections.section(
        sections.ANNOTATIONS,
        to.fields({"x-opt-scheduled-enqueue-time": to.timestamp(NOW_MS + 9_000)}),
    )
    entry = to.text_map({"message-id": to.string("n"), "message": to.binary(scheduled)})
    number = to.longs([1])
    in_session = {"session-id": to.string("a")}
    sql = to.text_map({"sql-filter": to.text_map({"expression": to.string("n = 1")})})
    correlation = {"label": to.string("x"), "properties": to.text_map({"n": to.int_(1)})}
    correlated = to.text_map({"correlation-filter": to.text_map(correlation)})
    page = {"skip": to.int_(0), "top": to.int_(9)}
    settled = {"lock-tokens": token, "deadletter-reason": to.string("r")}
    return {
        "peek-message": [
            {"from-sequence-number": to.long(0), "message-count": to.int_(9)},
            {"from-sequence-number": to.long(1), "message-count": to.int_(1), **in_session},
        ],
        "batch-delete-messages": [
            {"message-count": to.int_(9), "enqueued-time-utc": to.timestamp(NOW_MS + 1)}
        ],
        "renew-lock": [{"lock-tokens": token}],
        "update-disposition": [
            {"disposition-status": to.string(status), **settled, "properties-to-modify": more}
            for status in ("completed", "abandoned", "defered", "suspended")
            for more in (to.text_map({"n": to.int_(1)}),)
        ],
        "schedule-message": [{"messages": to.list_([entry])}],
        "cancel-scheduled-message": [{"sequence-numbers": to.longs([7])}],
        "receive-by-sequence-number": [
            {"sequence-numbers": number, "receiver-settle-mode": to.uint(1)},
            {"sequence-numbers": number, "receiver-settle-mode": to.uint(0), **in_session},
        ],
        "renew-session-lock": [in_session],
        "set-session-state": [{**in_session, "session-state": to.binary(b"x")}],
        "get-session-state": [in_session],
        "get-message-sessions": [{**page, "last-updated-time": to.timestamp(253402300800000)}],
        "add-rule": [
            {"rule-name": to.string("r"), "rule-description": one} for one in (sql, correlated)
        ],
        "remove-rule": [{"rule-name": to.string("$Default")}],
        "enumerate-rules": [page],
    }


def _session(wanted: bytes) -> bytes:
    """Return an attach to a session."""
    filters = to.fields({SESSION_FILTER: wanted})
    source = say.performative(say.SOURCE, [to.string("s"), *[to.NULL] * 6, filters])
    return attach(2, say.RECEIVER, "s", "me", from_=source, rcv=1)


def _asking(entity: str, handle: int = 0) -> list[bytes]:
    node = f"{entity}/$management"
    links = [attach(handle, True, node, "me"), attach(handle + 1, False, "me", node)]
    return [*links, _flow(handle, 100)]


def _word(performative: bytes) -> bytes:
    return sections.section(sections.VALUE, performative)


def _sending() -> list[list[bytes]]:
    sender = attach(0, say.SENDER, "me", "q")
    onward = {TRANSFER_DESTINATION: to.string("t")}
    large = message(b"x" * 300, "large")
    batch = b"".join(sections.data_section(message(b"x", str(n))) for n in range(3))
    return [
        [sender, *(transfer(0, n, one) for n, one in enumerate(messages()))],
        [sender, transfer(0, 1, batch, message_format=BATCH_FORMAT)],
        [
            *(sender, transfer(0, 1, large[:100], more=True), transfer(0, 1, large[100:])),
            *(transfer(0, 2, message(b"x"), settled=True), say.detach(0, None)),
        ],
        [attach(0, say.SENDER, "me", "t"), transfer(0, 1, message(b"x")), say.end(None)],
        [attach(0, say.SENDER, "me", "q", properties=onward), transfer(0, 1, message(b"x"))],
        [attach(0, say.SENDER, "me", "nowhere"), attach(1, say.SENDER, "me", "s"), _BEGIN],
    ]


def _receiving() -> list[list[bytes]]:
    receiver = attach(0, say.RECEIVER, "q", "me", rcv=1)
    reason = to.fields({"DeadLetterReason": to.string("r"), "n": to.int_(1)})
    why = say.performative(say.ERROR, [to.symbol("com.microsoft:dead-letter"), to.NULL, reason])
    states = [
        say.accepted(),
        say.released(),
        say.rejected(why),
        say.performative(say.MODIFIED, [to.TRUE, to.FALSE, to.fields({"n": to.int_(1)})]),
        say.performative(say.MODIFIED, [to.TRUE, to.TRUE]),
    ]
    settled = [say.disposition(say.RECEIVER, n, n, state) for n, state in enumerate(states)]
    waiting = say.performative(
        say.DISPOSITION, [to.TRUE, to.uint(0), to.uint(3), to.FALSE, say.accepted()]
    )
    return [
        [receiver, _flow(0, 10), *settled[:3], say.detach(0, None)],
        [receiver, _flow(0, 10), *settled[2:], _flow(0, 1, drain=True)],
        [receiver, _flow(0, 2), waiting, say.flow(0, 0, 0), say.flow(2, 9, 0)],
        [attach(0, say.RECEIVER, "q/$DeadLetterQueue", "me", snd=1), _flow(0, 5, drain=True)],
        [attach(0, say.RECEIVER, "t/Subscriptions/u", "me"), _flow(0, 5)],
        [_session(to.string("a")), _flow(2, 5), say.disposition(True, 0, 0, say.accepted())],
        [_session(to.NULL), _flow(2, 5), say.detach(2, None)],
    ]


def _sent_and_received() -> list[bytes]:
    said = [attach(0, say.SENDER, "me", "q"), attach(1, say.RECEIVER, "q", "me", rcv=1)]
    said += [_flow(1, 100), transfer(0, 1, message(b"x", "new")), say.detach(0, None)]
    return [*said, say.disposition(say.RECEIVER, 0, 9, say.accepted()), say.detach(1, None)]


def _transactions() -> list[list[bytes]]:
    coordinator = attach(0, say.SENDER, "me", "", terminus=_COORDINATOR)
    declare = transfer(0, 0, _word(say.performative(say.DECLARE, [to.NULL])))
    name = to.binary((1).to_bytes(16, "big"))
    inside = say.performative(say.TRANSACTIONAL, [name, to.NULL])
    done = say.performative(say.TRANSACTIONAL, [name, say.accepted()])
    receiver = attach(2, say.RECEIVER, "q", "me", rcv=1)
    found = []
    for fail in (to.FALSE, to.TRUE):
        discharge = transfer(0, 9, _word(say.performative(say.DISCHARGE, [name, fail])))
        work = [attach(1, say.SENDER, "me", "q"), transfer(1, 1, message(b"x"), state=inside)]
        work += [receiver, _flow(2, 2), say.disposition(say.RECEIVER, 0, 1, done)]
        found.append([coordinator, declare, *work, discharge, say.detach(0, None)])
    # Requests can be part of one, too: on links of their own, 10 and 11.
    asked = {**_requests()["schedule-message"][0], **_requests()["update-disposition"][0]}
    requests = [
        transfer(11, number, _request(f"com.microsoft:{word}", asked), state=inside)
        for number, word in enumerate(("schedule-message", "update-disposition", "renew-lock"))
    ]
    links = [*_asking("q", 10), receiver, _flow(2, 1)]
    found.append([coordinator, declare, *links, *requests, discharge])
    return found


def _managing() -> list[list[bytes]]:
    found = []
    for word, bodies in _requests().items():
        entity = "t/subscriptions/u" if "rule" in word else "s" if "session" in word else "q"
        before = [_session(to.string("a"))] if entity == "s" else []
        if word in ("renew-lock", "update-disposition"):
            before += [attach(2, say.RECEIVER, "q", "me", rcv=1), _flow(2, 1)]
        for body in bodies:
            asked = transfer(1, 0, _request(f"com.microsoft:{word}", body))
            found.append([*before, *_asking(entity), asked])
    return found


def conversations() -> list[bytes]:
    """Return what clients say once a connection and a session are open."""
    said = [*_sending(), *_receiving(), *_transactions(), *_managing()]
    several = [frame(1, _BEGIN), frame(1, attach(0, False, "me", "q")), frame(1, say.end(None))]
    streams = [b"".join(frame(0, one) for one in each) for each in said]
    # In bursts of a frame each, too: empty ones end them.
    apart = [*_sending(), *_receiving(), *_transactions(), _sent_and_received()]
    streams += [EMPTY_FRAME.join(frame(0, one) for one in each) for each in apart]
    return [*streams, b"".join([*several, EMPTY_FRAME, frame(0, say.close(None))])]


def performatives() -> list[bytes]:
    """Return every performative, with payloads where they have one."""
    streams = [*conversations(), *handshakes()]
    bodies: dict[bytes, None] = {}
    for stream in streams:
        at = 0
        while at < len(stream):
            if stream[at : at + 4] == b"AMQP":
                at += 8
                continue
            size = int.from_bytes(stream[at : at + 4], "big")
            bodies.setdefault(stream[at + 8 : at + size])
            at += size
    return [body for body in bodies if body]


def frames() -> list[bytes]:
    """Return streams of frames, some with headers that are longer."""
    longer = b"\0\0\0\x14\x03\0\0\x01extndata"
    return [*handshakes(), *conversations()[:6], EMPTY_FRAME * 3, longer + EMPTY_FRAME]


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "types": types,
    "frames": frames,
    "performatives": performatives,
    "messages": messages,
    "handshakes": handshakes,
    "conversations": conversations,
}


def main() -> None:
    for name, make in SEEDS.items():
        target = TARGETS[name]
        write_corpus(target, [*make(), *target.corpus()])


if __name__ == "__main__":
    main()
