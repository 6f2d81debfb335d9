"""A block: what one commit adds to one partition's log, as bytes.

All numbers are little-endian. A block is

    header   magic "OB", version (1 byte), encoding (1 byte), rows (4), CRC-32 of the index (4),
             checksum of the body (4; 0 where each row has its own)
    index    one entry of 52 bytes a row, in order of ordinals:
                 ordinal  u64   the row's place in the partition's log; rises, may skip (compaction)
                 stamp    i64   EnqueuedTimeUtc, milliseconds since 1970
                 expires  i64   bus time at which the message expires, or NEVER
                 session  u64   hash of the SessionId, 0 without one
                 end      u32   where the row ends in the body (rows encoding)
                 crc      u32   CRC-32 of the row's bytes (rows encoding)
                 arrived  i64   bus time at which the row was stored
                 kind     u32   0 a message; 1 the marker of a scheduled one, which gets another
                                row at its time; 2 a further copy that a rule's action made;
                                3 a message that was scheduled, in the row of its time
    body     rows encoding (0): the rows' bytes, one after the other (core/message.py)
             Arrow encoding (1): an Arrow IPC stream of one record batch (core/arrow_block.py);
             `end` and `crc` of the index are 0. Its checksum is the low half of its XXH3 (64 bits),
             which takes a tenth of the time that CRC-32 takes

A block that was staged (encoding 2) has the body of an Arrow block and no index, because its rows
had no numbers then. Its CRC-32 is 0. When it is published, the column `entries` of `block_index`
gets the index, and the body is not written again: the MessagePack of

    [first ordinal, stamp, arrived, expires, session, kind, CRC-32 of the index]

where ordinals have no gaps, and `expires`, `session` and `kind` are one number for all rows, or the
numbers of all rows as bytes.

The index is enough to expire messages and to find sessions; bodies are read on delivery. A row is
checked when it is read, and an Arrow body whole before its first row is read, so a flipped bit is
never served as a message.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from onibus.core.errors import Damaged
from onibus.core.message import Message, decode, encode
from onibus.core.numbering import ORDINAL, ORDINAL_CODE, ordinals_from

# pyarrow takes 50 ms and 25 MB to import: arrow_block is imported where the first one is met.
if TYPE_CHECKING:
    import pyarrow as pa

    from onibus.core.arrow_block import ArrowBody

#: The `expires` of a message that never does; also "no timer" elsewhere.
NEVER = 2**63 - 1

VERSION = 1
ROWS = 0
ARROW = 1
#: the body of an Arrow block, whose index is elsewhere
STAGED = 2

#: Kinds of rows.
MESSAGE = 0
SCHEDULED = 1
COPY = 2
ACTIVATED = 3

#: Errors of invalid MessagePack, of strings that are not UTF-8, and of deep nesting.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

HEADER = struct.Struct("<2sBBIII")
ENTRY = struct.Struct("<QqqQIIqI")
_END = struct.Struct("<I")
_END_AT = 32
#: ordinal, stamp, expires, session, end, crc, arrived, kind
Entry = tuple[int, int, int, int, int, int, int, int]
INDEX = np.dtype(
    [
        ("ordinal", ORDINAL),
        ("stamp", "<i8"),
        ("expires", "<i8"),
        ("session", "<u8"),
        ("end", "<u4"),
        ("crc", "<u4"),
        ("arrived", "<i8"),
        ("kind", "<u4"),
    ]
)
#: An index of this many rows is built by columns. For fewer, numpy's calls cost more.
_COLUMNS_MIN = 32


def encode_rows(
    first: int,
    stamp: int,
    arrived: int,
    expires: Sequence[int],
    sessions: Sequence[int],
    kinds: Sequence[int],
    rows: Sequence[bytes],
) -> bytes:
    """Return the bytes of a block whose ordinals are first, first + 1, … and share their times."""
    count = len(rows)
    if count >= _COLUMNS_MIN:
        index = np.empty(count, INDEX)
        index["ordinal"] = ordinals_from(first, count)
        index["stamp"] = stamp
        index["expires"] = expires
        index["session"] = sessions
        index["end"] = np.cumsum(list(map(len, rows)))
        index["crc"] = list(map(crc32, rows))
        index["arrived"] = arrived
        index["kind"] = kinds
        return _assemble(index.tobytes(), rows)
    pack = ENTRY.pack
    entries = []
    end = 0
    for at, row in enumerate(rows):
        end += len(row)
        entries.append(
            pack(first + at, stamp, expires[at], sessions[at], end, crc32(row), arrived, kinds[at])
        )
    return _assemble(b"".join(entries), rows)


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(
    tuple[int, int, int, int | bytes, int | bytes, int | bytes, int]
).decode


def arrow_index(
    ordinals: npt.ArrayLike,
    stamps: npt.ArrayLike,
    arrived: npt.ArrayLike,
    expires: npt.ArrayLike,
    sessions: npt.ArrayLike,
    kinds: npt.ArrayLike,
    rows: int,
) -> bytes:
    """Return the index of an Arrow block; one number stands for all rows."""
    entries = np.zeros(rows, INDEX)
    entries["ordinal"] = ordinals
    entries["stamp"] = stamps
    entries["arrived"] = arrived
    entries["expires"] = expires
    entries["session"] = sessions
    entries["kind"] = kinds
    return entries.tobytes()


def pack_entries(
    first: int,
    stamp: int,
    arrived: int,
    expires: npt.NDArray[Any],
    sessions: npt.NDArray[Any],
    kinds: npt.NDArray[Any],
) -> bytes:
    """Return the index of rows without gaps, as `entries` has it."""
    rows = len(expires)
    ordinals = ordinals_from(first, rows)
    index = arrow_index(ordinals, stamp, arrived, expires, sessions, kinds, rows)
    columns = [_packed(np.frombuffer(index, INDEX)[name]) for name in _VARYING]
    return _pack((first, stamp, arrived, *columns, crc32(index)))


#: Columns of an index in which rows that were stored together may differ.
_VARYING = ("expires", "session", "kind")


def _packed(column: npt.NDArray[Any]) -> int | bytes:
    return int(column[0]) if (column == column[0]).all() else column.tobytes()


def _unpacked(name: str, column: int | bytes) -> npt.ArrayLike:
    return np.frombuffer(column, INDEX[name]) if isinstance(column, bytes) else column


def _unpack_entries(packed: bytes, rows: int) -> bytes:
    """Return the index that `pack_entries` has packed, verified."""
    try:
        first, stamp, arrived, *columns, check = _unpack(packed)
        expires, sessions, kinds = map(_unpacked, _VARYING, columns)
        ordinals = ordinals_from(first, rows)
        index = arrow_index(ordinals, stamp, arrived, expires, sessions, kinds, rows)
    except (*UNREADABLE, ValueError, OverflowError) as error:
        raise Damaged(f"a block's entries cannot be read: {error}") from error
    if crc32(index) != check:
        raise Damaged("a block's entries do not match their checksum")
    return index


def encode_entries(given: Sequence[Entry], rows: Sequence[bytes]) -> bytes:
    """Return the bytes of a block of rows that were in others; ordinals must rise."""
    entries = []
    end = 0
    for (ordinal, stamp, expires, session, _, _, arrived, kind), row in zip(
        given, rows, strict=True
    ):
        end += len(row)
        entries.append(ENTRY.pack(ordinal, stamp, expires, session, end, crc32(row), arrived, kind))
    return _assemble(b"".join(entries), rows)


def _assemble(index: bytes, rows: Sequence[bytes]) -> bytes:
    header = HEADER.pack(b"OB", VERSION, ROWS, len(rows), crc32(index), 0)
    return b"".join((header, index, *rows))


class Block:
    """A block that was read back; its header and index have been verified.

    A `sound` block has been in memory since this process built it: its checksums need no check.
    """

    __slots__ = (
        "_arrow", "_body", "_first", "_index", "_ordinals", "_payload", "_sound", "_staged",
        "contiguous", "encoding", "rows",
    )  # fmt: skip

    def __init__(self, payload: bytes, sound: bool = False, entries: bytes | None = None) -> None:
        """Take up a block; `entries` is the index of one that was staged."""
        encoding, rows, index_crc, body_check = read_header(payload)
        self._body = HEADER.size + rows * ENTRY.size
        #: the payload of a block that was staged, whose index is not in it
        self._staged: bytes | None = None
        if encoding == STAGED:
            if entries is None:
                raise Damaged("a block that was staged has no index")
            index = _unpack_entries(entries, rows)
            self._staged = payload
            encoding, sound = ARROW, True
            payload = HEADER.pack(b"OB", VERSION, ARROW, rows, index_crc, body_check) + index
        if self._body > len(payload):
            raise Damaged(f"a block of {rows} rows ends within its index")
        if not sound and crc32(memoryview(payload)[HEADER.size : self._body]) != index_crc:
            raise Damaged("a block's index does not match its checksum")
        self._payload = payload
        self._sound = sound
        self._index: npt.NDArray[Any] | None = None
        self._ordinals: array[int] | None = None
        self._arrow: ArrowBody | None = None
        self.encoding: int = encoding
        self.rows: int = rows
        self._first: int = self.entry(0)[0]
        last, _, _, _, end, *_ = self.entry(rows - 1)
        self.contiguous: bool = last - self._first + 1 == rows
        if encoding == ROWS and (body_check or self._body + end != len(payload)):
            raise Damaged("a block's rows are not as long as its index says")

    @property
    def size(self) -> int:
        return len(self._payload) + (0 if self._staged is None else len(self._staged))

    @property
    def index(self) -> npt.NDArray[Any]:
        """The index as a numpy array with named columns."""
        if self._index is None:
            self._index = np.frombuffer(self._payload, INDEX, self.rows, HEADER.size)
        return self._index

    def position(self, ordinal: int) -> int:
        """Return where that ordinal is in the block, or -1."""
        if self.contiguous:
            position = ordinal - self._first
            return position if 0 <= position < self.rows else -1
        ordinals = self._all_ordinals()
        position = bisect_left(ordinals, ordinal)
        return position if position < self.rows and ordinals[position] == ordinal else -1

    def count(self, first: int, last: int) -> int:
        """Return how many rows have ordinals from the first to the last."""
        ordinals = self._all_ordinals()
        return bisect_right(ordinals, last) - bisect_left(ordinals, first)

    def _all_ordinals(self) -> array[int]:
        if self._ordinals is None:
            self._ordinals = array(ORDINAL_CODE, self.index["ordinal"].astype("=u8").tobytes())
        return self._ordinals

    def entry(self, position: int) -> Entry:
        """Return what the index has of a row."""
        return ENTRY.unpack_from(self._payload, HEADER.size + position * ENTRY.size)

    def row(self, position: int) -> bytes:
        """Return a row's bytes, verified; a message of an Arrow body is made into a row."""
        if self.encoding:
            return encode(self._arrow_body().message(position))
        return self._row(position, self.entry(position))

    def _row(self, position: int, entry: Entry) -> bytes:
        end = entry[4]
        before = HEADER.size + (position - 1) * ENTRY.size + _END_AT
        start: int = _END.unpack_from(self._payload, before)[0] if position else 0
        row = self._payload[self._body + start : self._body + end]
        if crc32(row) != entry[5] or len(row) != end - start:
            raise Damaged(f"the row of ordinal {entry[0]} does not match its checksum")
        return row

    def message(self, position: int) -> Message:
        """Return a row as the message that was sent."""
        return self.stored(position)[1]

    def stored(self, position: int) -> tuple[Entry, Message]:
        """Return what the index has of a row, and the message that was sent."""
        entry = self.entry(position)
        if self.encoding:
            return entry, self._arrow_body().message(position)
        try:
            return entry, decode(self._row(position, entry))
        except UNREADABLE as error:
            raise Damaged(f"the row of ordinal {entry[0]} is not a message: {error}") from error

    def messages(self, start: int, end: int) -> list[Message]:
        """Return the rows from one position up to another as the messages that were sent."""
        return [message for _, message in self.all_stored(start, end)]

    def all_stored(self, start: int, end: int) -> list[tuple[Entry, Message]]:
        """Return the same as `stored` of the rows from one position up to another."""
        if self.encoding:
            return [self.stored(position) for position in range(start, end)]
        payload, body, sound = self._payload, self._body, self._sound
        index = payload[HEADER.size + start * ENTRY.size : HEADER.size + end * ENTRY.size]
        begin = body + (self.entry(start - 1)[4] if start else 0)
        found = []
        try:
            for entry in ENTRY.iter_unpack(index):
                stop = body + entry[4]
                row = payload[begin:stop]
                if len(row) != stop - begin or not (sound or crc32(row) == entry[5]):
                    told = f"the row of ordinal {entry[0]} does not match its checksum"
                    raise Damaged(told)
                found.append((entry, decode(row)))
                begin = stop
        except UNREADABLE as error:
            raise Damaged(f"the row of ordinal {entry[0]} is not a message: {error}") from error
        return found

    def verify(self) -> None:
        """Compare all of it with its checksums."""
        for position in range(1 if self.encoding else self.rows):
            self.row(position)

    def record_batch(self) -> pa.RecordBatch:
        """Return all rows, decoded and verified, by the schema of core/arrow_block.py."""
        from onibus.core.arrow_block import record_batch

        return record_batch(self)

    def arrow_batch(self) -> pa.RecordBatch:
        """Return the rows of an Arrow body, verified and not copied."""
        return self._arrow_body().batch

    def _arrow_body(self) -> ArrowBody:
        """Return the body of an Arrow block, verified once."""
        if self._arrow is None:
            from onibus.core.arrow_block import ArrowBody

            if self._staged is None:
                self._arrow = ArrowBody(self._payload, self._body, self.rows)
            else:
                self._arrow = ArrowBody(self._staged, HEADER.size, self.rows)
        return self._arrow


def read_header(payload: bytes) -> tuple[int, int, int, int]:
    """Return encoding, rows and the two checksums of a block."""
    if len(payload) < HEADER.size:
        raise Damaged(f"a block of {len(payload)} bytes has no header")
    magic, version, encoding, rows, index_crc, body_check = HEADER.unpack_from(payload)
    if magic != b"OB" or version != VERSION or encoding > STAGED or not rows:
        raise Damaged("a block has an unknown header")
    return encoding, rows, index_crc, body_check


def is_staged(payload: bytes) -> bool:
    """Return whether a block was staged, so that its index is elsewhere."""
    return read_header(payload)[0] == STAGED


def verify(payload: bytes) -> None:
    """Compare a block, staged or not, with its checksums."""
    if not is_staged(payload):
        Block(payload).verify()
        return
    from onibus.core.arrow_block import staged_columns

    staged_columns(payload)
