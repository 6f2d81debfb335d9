"""Performatives: the content of frames (specification, part 2, 2.7; part 4 for transactions).

Each is a described list. A decoded one becomes a named tuple, its fields checked against their
types. An encoded one has all its fields, nulls included, since one client counts them.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.decode import READERS, UNREADABLE, Described, Timestamp
from onibus.protocols.amqp.errors import INVALID_FIELD, ConnectionFailed, DecodeError

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR = 0x1D
RECEIVED, ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x23, 0x24, 0x25, 0x26, 0x27
SOURCE, TARGET, COORDINATOR = 0x28, 0x29, 0x30
DECLARE, DISCHARGE, DECLARED, TRANSACTIONAL = 0x31, 0x32, 0x33, 0x34

#: Roles, as a boolean in frames.
SENDER, RECEIVER = False, True
#: Settle modes of senders and receivers.
UNSETTLED, SETTLED, MIXED = 0, 1, 2
FIRST, SECOND = 0, 1


class Open(NamedTuple):
    """A peer introduces itself."""

    container_id: str = ""
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Begin(NamedTuple):
    """A session begins."""

    remote_channel: int | None = None
    next_outgoing_id: int = 0
    incoming_window: int = 0
    outgoing_window: int = 0
    handle_max: int | None = None


class Attach(NamedTuple):
    """A link is attached; its name is what both ends call it."""

    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Any = None
    target: Any = None
    unsettled: Any = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Flow(NamedTuple):
    """Windows of a session and, with a handle, credit of a link."""

    next_incoming_id: int | None = None
    incoming_window: int = 0
    next_outgoing_id: int = 0
    outgoing_window: int = 0
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool | None = None
    echo: bool | None = None


class Transfer(NamedTuple):
    """A delivery, or a part of one."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: int | None = None
    state: Any = None
    resume: bool | None = None
    aborted: bool | None = None


class Disposition(NamedTuple):
    """The outcome of deliveries."""

    role: bool
    first: int
    last: int | None = None
    settled: bool | None = None
    state: Any = None


class Detach(NamedTuple):
    """A link is detached."""

    handle: int
    closed: bool | None = None
    error: Any = None


class End(NamedTuple):
    """A session ends."""

    error: Any = None


class Close(NamedTuple):
    """A connection ends."""

    error: Any = None


#: What a field may be: a type, and whether it must be there.
_UINT: Any = (int, 0, 2**32 - 1)
_USHORT: Any = (int, 0, 2**16 - 1)
_UBYTE: Any = (int, 0, 2)
_ULONG: Any = (int, 0, 2**64 - 1)
_ANY: Any = (object, 0, 0)
_BOOL: Any = (bool, 0, 0)
_TEXT: Any = (str, 0, 0)
_MAP: Any = (dict, 0, 0)
_BYTES: Any = (bytes, 0, 0)
_DESCRIBED: Any = (Described, 0, 0)

#: code → the class, how many of its first fields are mandatory, and the types of its fields
_KNOWN: dict[int, tuple[Any, tuple[int, ...], tuple[Any, ...]]] = {
    OPEN: (
        Open,
        (0,),
        (_TEXT, _TEXT, _UINT, _USHORT, _UINT, _ANY, _ANY, _ANY, _ANY, _MAP),
    ),
    BEGIN: (Begin, (1, 2, 3), (_USHORT, _UINT, _UINT, _UINT, _UINT)),
    ATTACH: (
        Attach,
        (0, 1, 2),
        (
            *(_TEXT, _UINT, _BOOL, _UBYTE, _UBYTE, _DESCRIBED, _DESCRIBED),
            *(_ANY, _BOOL, _UINT, _ULONG, _ANY, _ANY, _MAP),
        ),
    ),
    FLOW: (
        Flow,
        (1, 2, 3),
        (_UINT, _UINT, _UINT, _UINT, _UINT, _UINT, _UINT, _UINT, _BOOL, _BOOL),
    ),
    TRANSFER: (
        Transfer,
        (0,),
        (
            *(_UINT, _UINT, _BYTES, _UINT, _BOOL, _BOOL),
            *(_UBYTE, _DESCRIBED, _BOOL, _BOOL),
        ),
    ),
    DISPOSITION: (Disposition, (0, 1), (_BOOL, _UINT, _UINT, _BOOL, _DESCRIBED)),
    DETACH: (Detach, (0,), (_UINT, _BOOL, _ANY)),
    END: (End, (), (_ANY,)),
    CLOSE: (Close, (), (_ANY,)),
}

#: Symbols that stand for the same codes.
_NAMES = {
    f"amqp:{word}:list": code
    for word, code in (
        *(("open", OPEN), ("begin", BEGIN), ("attach", ATTACH), ("flow", FLOW)),
        *(("transfer", TRANSFER), ("disposition", DISPOSITION), ("detach", DETACH)),
        *(("end", END), ("close", CLOSE), ("sasl-init", 0x41), ("sasl-response", 0x43)),
    )
}


def read_list(body: bytes) -> tuple[int, list[Any], int]:
    """Return the code of a frame's performative, its fields, and where its payload begins."""
    try:
        if body[0] != 0:
            raise DecodeError("a frame does not begin with a performative")
        if body[1] == 0x53:
            code, at = body[2], 3
        else:
            descriptor, at = READERS[body[1]](body, 2, 0)
            code = _NAMES.get(descriptor, -1) if isinstance(descriptor, str) else descriptor
        fields, at = READERS[body[at]](body, at + 1, 0)
    except UNREADABLE as error:
        raise DecodeError(f"invalid performative: {error}") from None
    if type(fields) is not list or type(code) is not int:
        raise DecodeError("a performative must be a list")
    return code, fields, at


def read(code: int, fields: list[Any]) -> Any:
    """Return a performative with its fields checked."""
    known = _KNOWN.get(code)
    if known is None:
        raise DecodeError(f"unknown performative 0x{code:x}")
    make, mandatory, types = known
    values = []
    for position, (value, (kind, low, high)) in enumerate(zip(fields, types, strict=False)):
        if value is None:
            if position in mandatory:
                break
        elif not isinstance(value, kind) or (kind is int and not _is_between(value, low, high)):
            name = f"{make.__name__.lower()}.{make._fields[position]}"
            raise ConnectionFailed(INVALID_FIELD, f"{name} has the wrong type or value")
        values.append(value)
    if mandatory and len(values) <= mandatory[-1]:
        raise ConnectionFailed(INVALID_FIELD, f"{make.__name__.lower()} lacks mandatory fields")
    return make(*values)


#: Handle, delivery id, message format, and where the payload begins.
Plain = tuple[int, int, int, int]

#: How a transfer begins; what follows the format where all else is false or not said.
PLAIN_TRANSFER = b"\x00\x53\x14"
_NOTHING_MORE = frozenset(
    flags + b"\x40" * nulls
    for flags in (b"", b"\x42", b"\x40\x42", b"\x42\x42", b"\x42\x40")
    for nulls in range(8)
)
_u32 = struct.Struct(">I").unpack_from


def read_plain(body: bytes) -> Plain | None:
    """Return what a transfer of the usual form says; None of any other, which `read` reads.

    So are nearly all transfers: whole, not settled, without a state, and with small numbers.
    """
    try:
        if body[3] == 0xC0:
            end, count, at = 5 + body[4], body[5], 6
        elif body[3] == 0xD0:
            end, count, at = 8 + _u32(body, 4)[0], _u32(body, 8)[0], 12
        else:
            return None
        handle, at = _plain_uint(body, at)
        delivery_id, at = _plain_uint(body, at)
        if body[at] != 0xA0:
            return None
        message_format, at = _plain_uint(body, at + 2 + body[at + 1])
    except (IndexError, struct.error):
        return None
    more = body[at:end]
    if not 0 <= at <= end <= len(body) or more not in _NOTHING_MORE or count != 4 + len(more):
        return None
    return handle, delivery_id, message_format, end


def _plain_uint(body: bytes, at: int) -> tuple[int, int]:
    """Return the uint at a position and its end; an end before the position if it is not one."""
    code = body[at]
    if code == 0x52:
        return body[at + 1], at + 2
    if code == 0x43:
        return 0, at + 1
    if code == 0x70:
        return _u32(body, at + 1)[0], at + 5
    return 0, _NOWHERE


#: So far before the beginning that it stays there.
_NOWHERE = -(1 << 40)


def _is_between(value: Any, low: int, high: int) -> bool:
    return type(value) is not bool and type(value) is not Timestamp and low <= value <= high


def performative(code: int, fields: list[bytes]) -> bytes:
    return to.described(code, to.list_(fields))


def error(condition: str, description: str) -> bytes:
    """Return an error; all three of its fields, since one client counts them."""
    return performative(ERROR, [to.symbol(condition), to.string(description[:1_000]), to.NULL])


_ACCEPTED = to.described(ACCEPTED, to.EMPTY_LIST)
_RELEASED = to.described(RELEASED, to.EMPTY_LIST)


def accepted() -> bytes:
    return _ACCEPTED


def released() -> bytes:
    return _RELEASED


def rejected(why: bytes | None = None) -> bytes:
    """Return the rejected outcome; without an error, for a delivery that its receiver rejected."""
    return performative(REJECTED, [to.NULL if why is None else why])


def open_(container: str, frame_max: int, channel_max: int, idle_ms: int) -> bytes:
    return performative(
        OPEN,
        [
            to.string(container),
            to.NULL,
            to.uint(frame_max),
            to.ushort(channel_max),
            to.uint(idle_ms),
            *[to.NULL] * 5,
        ],
    )


def begin(channel: int, next_outgoing_id: int, window: int, handle_max: int) -> bytes:
    windows = [to.uint(next_outgoing_id), to.uint(window), to.uint(window), to.uint(handle_max)]
    return performative(BEGIN, [to.ushort(channel), *windows, *[to.NULL] * 3])


def flow(
    next_incoming_id: int,
    window: int,
    next_outgoing_id: int,
    link: tuple[int, int, int, bool] | None = None,
) -> bytes:
    """Return a flow; `link` is its handle, delivery count, credit, and whether it is drained."""
    session = [to.uint(next_incoming_id), to.uint(window), to.uint(next_outgoing_id)]
    session.append(to.uint(window))
    if link is None:
        return performative(FLOW, [*session, *[to.NULL] * 7])
    handle, count, credit, drain = link
    own = [to.uint(handle), to.uint(count), to.uint(credit), to.NULL, to.boolean(drain)]
    return performative(FLOW, [*session, *own, to.NULL, to.NULL])


#: Head of a list of 11 in 37 bytes, handle, id, a tag of 16 bytes, format 0, settled, more.
_TRANSFER = struct.Struct(">6sBIBIBB16sBBB5s").pack
_TRANSFER_HEAD = b"\x00\x53\x14\xc0\x25\x0b"


def transfer(handle: int, delivery_id: int, tag: bytes, settled: bool, more: bool) -> bytes:
    """Return a transfer, to be followed by its payload."""
    said, follows = 0x42 - settled, 0x42 - more
    if len(tag) == 16:
        return _TRANSFER(
            *(_TRANSFER_HEAD, 0x70, handle, 0x70, delivery_id, 0xA0, 16, tag),
            *(0x43, said, follows, b"\x40" * 5),
        )
    head = [to.uint(handle), to.uint(delivery_id), to.binary(tag), to.uint(0)]
    flags = [bytes((said,)), bytes((follows,))]
    return performative(TRANSFER, [*head, *flags, *[to.NULL] * 5])


#: The same for a whole delivery that is not settled, with the head of its frame before it.
_UNSETTLED = struct.Struct(">IBBH6sBIBIBB16s8s")
UNSETTLED_BYTES = _UNSETTLED.size
_UNSETTLED_TAIL = b"\x43\x42\x42" + b"\x40" * 5


def unsettled_frame(size: int, channel: int, handle: int, delivery_id: int, tag: bytes) -> bytes:
    """Return the frame of a delivery with a tag of 16 bytes, up to its payload."""
    return _UNSETTLED.pack(
        *(size, 2, 0, channel, _TRANSFER_HEAD, 0x70, handle, 0x70, delivery_id),
        *(0xA0, 16, tag, _UNSETTLED_TAIL),
    )


def disposition(role: bool, first: int, last: int, state: bytes) -> bytes:
    """Return that deliveries are settled, and how."""
    ids = [to.uint(first), to.uint(last)]
    return performative(DISPOSITION, [to.boolean(role), *ids, to.TRUE, state or to.NULL, to.NULL])


def detach(handle: int, why: bytes | None) -> bytes:
    return performative(DETACH, [to.uint(handle), to.TRUE, to.NULL if why is None else why])


def end(why: bytes | None) -> bytes:
    return performative(END, [to.NULL if why is None else why])


def close(why: bytes | None) -> bytes:
    return performative(CLOSE, [to.NULL if why is None else why])


def terminus_list(terminus: Any) -> list[Any]:
    """Return the fields of a source or target; an empty list if it is missing."""
    value = terminus.value if isinstance(terminus, Described) else None
    return value if isinstance(value, list) else []


def address_of(terminus: Any) -> str:
    """Return the address of a source or target; an empty string if it has none."""
    fields = terminus_list(terminus)
    return fields[0] if fields and isinstance(fields[0], str) else ""


def source(given: Any, more: bytes = to.NULL) -> bytes:
    """Return a source with the address that a peer gave, and a filter."""
    address = _address(given)
    return performative(SOURCE, [address, *[to.NULL] * 6, more, *[to.NULL] * 3])


def target(given: Any) -> bytes:
    """Return a target with the address that a peer gave, or a coordinator."""
    if is_coordinator(given):
        return performative(COORDINATOR, [to.symbols(["amqp:local-transactions"])])
    return performative(TARGET, [_address(given), *[to.NULL] * 6])


def is_coordinator(given: Any) -> bool:
    return isinstance(given, Described) and given.descriptor in (COORDINATOR, _COORDINATOR)


_COORDINATOR = "amqp:coordinator:list"


def _address(given: Any) -> bytes:
    fields = terminus_list(given)
    return to.string(fields[0]) if fields and isinstance(fields[0], str) else to.NULL
