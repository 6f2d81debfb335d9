"""Runs: transfers of the usual form that arrive one after the other on a link, read together.

The first of a run is read byte by byte (`performatives.read_plain`). Those that follow mostly
differ only in the size of their frame, the delivery's id, its tag and its payload. If the other
bytes are equal they mean the same, so only these parts are read. A transfer with other bytes begins
a new run, and one that is not of the usual form is in none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from onibus.protocols.amqp.performatives import PLAIN_TRANSFER, Transfer, read_plain

AMQP = 0
HEADER_BYTES = 8
FRAME_HEAD = struct.Struct(">IBBH")

#: From the beginning of a frame: what its performative begins with, and where its fields begin.
_CODE_AT = HEADER_BYTES + len(PLAIN_TRANSFER)
_FIELDS_AT = {0xC0: HEADER_BYTES + 6, 0xD0: HEADER_BYTES + 12}
#: The bytes of a uint with its code, by the code; the format of one that has bytes.
_UINT_BYTES = {0x43: 1, 0x52: 2, 0x70: 5}
_UINT_FORMS = {0x52: "B", 0x70: "I"}
#: Transfers of one run, so that others have their turn.
RUN_MAX = 500


class Run:
    """Whole deliveries of one link, not settled, that came together."""

    __slots__ = ("bounds", "bytes_max", "channel", "data", "end", "format", "handle", "ids")

    def __init__(self, data: bytes, channel: int, handle: int, message_format: int) -> None:
        self.data = data
        self.channel = channel
        self.handle = handle
        self.format = message_format
        self.ids: list[int] = []
        #: where each payload begins in the data, and where it ends
        self.bounds: list[tuple[int, int]] = []
        #: the size of the largest payload
        self.bytes_max = 0
        #: where the last frame ends
        self.end = 0

    def transfers(self) -> Iterator[tuple[int, Transfer, bytes]]:
        """Yield the channel, each as what `performatives.read` makes of it, and its payload."""
        for delivery_id, (start, end) in zip(self.ids, self.bounds, strict=True):
            transfer = Transfer(self.handle, delivery_id, message_format=self.format)
            yield self.channel, transfer, self.data[start:end]


def read_run(data: bytes, at: int, size_max: int) -> Run | None:
    """Return the run at a position; None if no complete transfer of the usual form begins there."""
    if data[at + HEADER_BYTES : at + _CODE_AT] != PLAIN_TRANSFER:
        return None
    size, words, kind, channel = FRAME_HEAD.unpack_from(data, at)
    stop = at + size
    if words != 2 or kind != AMQP or not HEADER_BYTES <= size <= size_max or stop > len(data):
        return None
    plain = read_plain(data[at + HEADER_BYTES : stop])
    if plain is None:
        return None
    handle, delivery_id, message_format, offset = plain
    run = Run(data, channel, handle, message_format)
    run.ids.append(delivery_id)
    run.bounds.append((at + HEADER_BYTES + offset, stop))
    run.bytes_max, run.end = size - HEADER_BYTES - offset, stop
    if len(data) - stop > HEADER_BYTES + offset:
        _read_alike(run, at, HEADER_BYTES + offset, size_max)
    return run


def _read_alike(run: Run, at: int, offset: int, size_max: int) -> None:
    """Take what follows the first transfer and differs from it in its size, id and tag only."""
    data, ids, bounds = run.data, run.ids, run.bounds
    id_at = at + _FIELDS_AT[data[at + _CODE_AT]]
    id_at += _UINT_BYTES[data[id_at]]
    form = _UINT_FORMS.get(data[id_at])
    if form is None:
        return
    tag_at = id_at + _UINT_BYTES[data[id_at]]
    read = _shape(id_at - at - 3, form, data[tag_at + 1], offset)
    _, head, _, tag_head, tail = read(data, at)
    stop, end = run.end, len(data)
    largest = run.bytes_max + offset
    while end - stop >= offset and len(ids) < RUN_MAX:
        size, own_head, delivery_id, own_tag_head, own_tail = read(data, stop)
        if own_head != head or own_tail != tail or own_tag_head != tag_head:
            break
        start, following = stop + offset, stop + size
        if not offset <= size <= size_max or following > end:
            break
        ids.append(delivery_id)
        bounds.append((start, following))
        if size > largest:
            largest = size
        stop = following
    run.bytes_max, run.end = largest - offset, stop


@lru_cache(maxsize=256)
def _shape(head_bytes: int, form: str, tag_bytes: int, offset: int) -> Any:
    """Return what reads: the frame's size, up to the id, the id, the tag's head, up to the payload.

    The part before the id includes the code of its type, the tag's head its length.
    """
    known = 4 + head_bytes + struct.calcsize(f">{form}") + 2 + tag_bytes
    return struct.Struct(f">I{head_bytes}s{form}2s{tag_bytes}x{offset - known}s").unpack_from
