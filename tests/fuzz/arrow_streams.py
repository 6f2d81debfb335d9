"""Arrow IPC streams that are nearly right: of any type, and with anything wrong in them.

A stream is changed message by message: lengths, headers (which are flatbuffers) and bodies, mostly
by numbers that mean something at the place where they are put.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from onibus.core.arrow_block import SCHEMA

BYTES_MAX = 16_384
_V5 = pa.ipc.MetadataVersion.V5
#: One column in this many has an odd type.
_ODD_COLUMNS = 12
_NUMBERS = (
    *(
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        15,
        16,
        24,
        63,
        64,
        65,
        127,
        128,
        255,
        256,
        1_000,
        9_999,
        10_000,
        10_001,
    ),
    *(65_535, 65_536, 2**24, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1),
    *(-1, -2, -8, -64, -(2**31), -(2**63)),
)
_TEXTS = ("", "a", "b", "id", "x" * 129, "é", "amqp", "sqs", "\0", "a" * 40, "\U0001f600")
_PROPERTIES: tuple[Any, ...] = (
    {},
    {"n": 1},
    {"n": 1.5, "t": "text", "b": b"x", "y": True},
    {"a": [1, [2]]},
    {1: 2},
    [1],
    {"": None},
    {"n": 2**64 - 1},
)


#: Bytes that are not a map: too deep, too long, cut off. Mostly there are none of them.
_RAW = (
    *(b"",) * 12,
    *(
        b"\x91" * 3_000,
        b"\x81\xa1k" * 1_000,
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1k\xdd\xff\xff\xff\xff",
    ),
    *(b"\xc1", b"\x81\xa1\xff\xc0", b"\x81\xc0\xc0", b"\x81\xa1k\xd8\x01" + bytes(16)),
)


class _Message(NamedTuple):
    """A message: its header, and its body."""

    header: bytes
    body: bytes

    def bytes(self) -> bytes:
        return struct.pack("<Ii", 0xFFFFFFFF, len(self.header)) + self.header + self.body


_END = struct.pack("<Ii", 0xFFFFFFFF, 0)


def cut(stream: bytes) -> tuple[list[_Message], bytes]:
    """Return the messages of a stream, and what is left from where it cannot be read."""
    found, at = [], 0
    try:
        for message in pa.ipc.MessageReader.open_stream(stream):
            header = bytes(message.metadata)
            body = b"" if message.body is None else bytes(message.body)
            found.append(_Message(header, body))
            at += 8 + len(header) + len(body)
    except (pa.ArrowException, OSError, StopIteration):
        pass
    return found, stream[at:]


class ArrowMutator:
    """Makes bodies of the Arrow routes."""

    def __init__(self, random: Random, corpus: list[bytes]) -> None:
        self.random = random
        self._known = [message for one in corpus for message in cut(one)[0]] or [_Message(b"", b"")]

    def mutate(self, data: bytes) -> bytes:
        """Return another body: one that is made, or this one with something wrong in it."""
        random = self.random
        if random.random() < 0.35:
            data = self.make()
            if random.random() < 0.15:
                return data[:BYTES_MAX]
        for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5))):
            data = self._change(data)
        return data[:BYTES_MAX]

    # New streams

    def make(self) -> bytes:
        """Return a stream of rows that may or may not be messages."""
        random = self.random
        columns: dict[str, Any] = {}
        rows = random.choice((0, 1, 1, 2, 3, 5, 17))
        for field in random.sample(list(SCHEMA), random.randrange(1, 7)):
            columns[field.name] = self._column(field, rows)
        if random.random() < 0.05:
            columns["unknown"] = pa.array([1] * rows)
        batch = pa.record_batch(columns)
        options = pa.ipc.IpcWriteOptions(
            compression=random.choice((None,) * 8 + ("zstd", "lz4")),
            metadata_version=random.choice((_V5,) * 19 + (pa.ipc.MetadataVersion.V4,)),
            use_legacy_format=random.random() < 0.03,
            emit_dictionary_deltas=random.random() < 0.1,
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            for _ in range(random.choice((1, 1, 1, 2, 4))):
                writer.write_batch(batch)
        return bytes(sink.getvalue())

    def _column(self, field: pa.Field, rows: int) -> pa.Array:
        random = self.random
        values = [self._value(field) for _ in range(rows)]
        usual = pa.array(values, field.type)
        if random.randrange(_ODD_COLUMNS):
            return usual
        made: pa.Array = random.choice(_SHAPES)(usual)
        return made

    def _value(self, field: pa.Field) -> Any:
        random = self.random
        if random.random() < 0.15:
            return None
        if field.name == "properties":
            return random.choice(_RAW) or msgspec.msgpack.encode(random.choice(_PROPERTIES))
        if field.type == pa.int64():
            return random.choice([number for number in _NUMBERS if -(2**63) <= number < 2**63])
        text = random.choice(_TEXTS)
        return text if field.type == pa.string() else text.encode()

    # Changes

    def _change(self, data: bytes) -> bytes:
        random = self.random
        messages, rest = cut(data)
        choice = random.random()
        if not messages or choice < 0.06:
            return self._bytes(data, 0, len(data))
        # Mostly a batch: the server reads no batch after a wrong schema.
        at = random.randrange(0 if random.random() < 0.25 else len(messages) > 1, len(messages))
        header, body = messages[at]
        if choice < 0.4:
            # Rows, nulls, and where buffers are: all of them have eight bytes.
            sizes = (8, 8, 8, 4, 1) if body else (4, 4, 2, 1)
            messages[at] = _Message(self._numbers(header, sizes), body)
        elif choice < 0.72 and body:
            messages[at] = _Message(header, self._numbers(body, (4, 4, 4, 8, 1)))
        elif choice < 0.78:
            return self._lengths(data, messages, at)
        elif choice < 0.83:
            messages[at] = _Message(header, body[: random.randrange(len(body) + 1)])
        elif choice < 0.86:
            messages[at] = _Message(header, random.choice(self._known).body)
        elif choice < 0.94:
            self._reorder(messages, at)
        else:
            whole = b"".join(message.bytes() for message in messages) + rest
            return whole[: random.randrange(len(whole) + 1)]
        return b"".join(message.bytes() for message in messages) + (rest or _END)

    def _reorder(self, messages: list[_Message], at: int) -> None:
        random = self.random
        choice = random.randrange(4)
        if choice == 0:
            del messages[at]
        elif choice == 1:
            messages.insert(random.randrange(len(messages) + 1), messages[at])
        elif choice == 2:
            messages.insert(random.randrange(len(messages)), messages.pop(at))
        else:
            messages.insert(random.randrange(len(messages) + 1), random.choice(self._known))

    def _lengths(self, data: bytes, messages: list[_Message], at: int) -> bytes:
        """Let a message say that its header has another length."""
        start = sum(len(one.bytes()) for one in messages[:at])
        length = len(messages[at].header) + self.random.choice((-8, -1, 1, 4, 8, 64))
        chosen = self.random.choice((length, self.random.choice(_NUMBERS)))
        told = struct.pack("<I", chosen & 0xFFFFFFFF)
        return data[: start + 4] + told + data[start + 8 :]

    def _numbers(self, content: bytes, sizes: tuple[int, ...]) -> bytes:
        """Put a number where one may be: aligned to its size."""
        random = self.random
        size = random.choice(sizes)
        if len(content) < size or random.random() < 0.15:
            return self._bytes(content, 0, len(content))
        at = random.randrange(len(content) // size) * size
        old = int.from_bytes(content[at : at + size], "little", signed=True)
        new = random.choice(
            (random.choice(_NUMBERS), random.choice(_NUMBERS), old + 1, old - 1, old * 2, old + 8)
        )
        told = (new & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        return content[:at] + told + content[at + size :]

    def _bytes(self, data: bytes, start: int, end: int) -> bytes:
        """Change bytes, whatever they mean."""
        random = self.random
        content = bytearray(data)
        at = random.randrange(start, end + 1)
        choice = random.randrange(5)
        if choice == 0 or at >= len(content):
            content[at:at] = random.randbytes(random.choice((1, 4, 8)))
        elif choice == 1:
            del content[at : at + random.choice((1, 2, 4, 8))]
        elif choice == 2:
            content[at] ^= 1 << random.randrange(8)
        elif choice == 3:
            content[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        else:
            count = random.choice((4, 8, 16))
            content[at : at + count] = content[random.randrange(len(content)) :][:count]
        return bytes(content)


def _as(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return what makes a column of a type, with nulls where values do not fit."""

    def make(usual: pa.Array) -> pa.Array:
        try:
            return usual.cast(kind)
        except pa.ArrowException:
            return pa.nulls(len(usual), kind)

    return make


def _nested(levels: int) -> Callable[[pa.Array], pa.Array]:
    def make(usual: pa.Array) -> pa.Array:
        for _ in range(levels):
            usual = pa.ListArray.from_arrays(list(range(len(usual) + 1)), usual)
        return usual

    return make


def _union(usual: pa.Array) -> pa.Array:
    kinds = pa.array([at % 2 for at in range(len(usual))], pa.int8())
    return pa.UnionArray.from_sparse(kinds, [usual, pa.nulls(len(usual), pa.int32())])


def _run_ends(usual: pa.Array) -> pa.Array:
    ends = pa.array(range(1, len(usual) + 1), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, usual)


def _map(usual: pa.Array) -> pa.Array:
    keys = pa.array(["k"] * len(usual))
    return pa.MapArray.from_arrays(list(range(len(usual) + 1)), keys, usual)


#: Columns of other types.
_SHAPES: tuple[Callable[[pa.Array], pa.Array], ...] = (
    lambda usual: usual.dictionary_encode(),
    _as(pa.large_string()),
    _as(pa.large_binary()),
    _as(pa.string_view()),
    _as(pa.binary_view()),
    _as(pa.int32()),
    _as(pa.uint8()),
    _as(pa.float64()),
    _as(pa.binary(8)),
    _as(pa.decimal128(10)),
    _as(pa.timestamp("ms")),
    _as(pa.bool_()),
    _as(pa.null()),
    _nested(1),
    _nested(3),
    lambda usual: pa.StructArray.from_arrays([usual], ["inner"]),
    lambda usual: pa.ListArray.from_arrays(list(range(len(usual) + 1)), usual.dictionary_encode()),
    _union,
    _run_ends,
    _map,
)


def seeds() -> list[bytes]:
    """Return streams that mean something, and one of each odd type."""
    mutator = ArrowMutator(Random(1), [])
    found = [mutator.make() for _ in range(60)]
    texts = pa.array(["a", None, "b"])
    for shape in _SHAPES:
        batch = pa.record_batch({"message_id": shape(texts), "body": [b"x", b"", b"yy"]})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        found.append(bytes(sink.getvalue()))
    return found
