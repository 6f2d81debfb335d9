"""Hostile Arrow bodies: the server rejects each one and still answers.

The server is a separate process: if it crashes, the next request fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from onibus.api.wire import ARROW
from onibus.core.errors import InvalidArgument
from onibus.protocols.http.arrow import read_stream
from onibus.protocols.http.arrow_headers import BATCH_HEADER_BYTES_MAX, NAME_BYTES_MAX
from tests.server.processes import Served, served

MB = 1 << 20
#: Far more than any of these bodies takes, far less than they would take if they were believed.
GROWN_BYTES_MAX = 128 * MB
WHOSE = "?producer=p&batch=0&task=0&attempt=0"


def stream(batch: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def column(values: pa.Array, name: str = "body", **options: Any) -> bytes:
    return stream(pa.record_batch({name: values}), **options)


def with_changed(content: bytes, old: bytes, new: bytes) -> bytes:
    """Return the stream with something else in the only place that has this."""
    assert content.count(old) == 1, content.count(old)
    assert len(old) == len(new)
    return content.replace(old, new)


def numbers(form: str, *values: int) -> bytes:
    return struct.pack(f"<{len(values)}{form}", *values)


def split(content: bytes) -> tuple[bytes, bytes]:
    """Return the message of a schema, and what follows it."""
    end = 8 + struct.unpack_from("<i", content, 4)[0]
    return content[:end], content[end:]


BINARY = pa.array([b"ab", b"cde", b"f"], pa.binary())
TEXT = pa.array(["ab", "cde", "f"], pa.string())
NESTED = pa.array([[[b"a"], [b"b"]]] * 2, pa.list_(pa.list_(pa.binary())))
FAR = numbers("i", 0x40000000, 0x50000000, 0x60000000)


def nested() -> bytes:
    """Lists whose offsets lead a gigabyte away."""
    return with_changed(column(NESTED), numbers("i", 0, 2, 4), FAR)


def dictionary() -> bytes:
    """Indexes far outside the dictionary."""
    values = pa.array(["x", "y", "x", "y", "x", "y", "y", "y"]).dictionary_encode()
    content = column(values, "message_id")
    return with_changed(content, numbers("i", 0, 1, 0, 1, 0, 1, 1, 1), FAR + FAR + FAR[:8])


def far_offsets() -> bytes:
    return with_changed(column(BINARY), numbers("i", 0, 2, 5, 6), FAR + numbers("i", 0x70000000))


def falling_offsets() -> bytes:
    return with_changed(column(BINARY), numbers("i", 0, 2, 5, 6), numbers("i", 0, 5, 2, 6))


def no_text() -> bytes:
    return with_changed(column(TEXT, "message_id"), b"abcdef", b"ab\xff\xfeef")


def view() -> bytes:
    """A view of a buffer that is not there."""
    long = "a text that is longer than twelve"
    content = column(pa.array([long], pa.string_view()), "message_id")
    return content[:-40] + numbers("i", 0x7FFFFFF0) + content[-36:]


def more_rows(count: int) -> Callable[[], bytes]:
    """A batch, and its column, that have more rows than its buffers."""

    def make() -> bytes:
        content = column(pa.array(range(7), pa.int64()), "hop_count")
        assert content.count(numbers("q", 7)) == 2
        return content.replace(numbers("q", 7), numbers("q", count))

    return make


def nulls() -> bytes:
    """Nothing at all, very often."""
    return column(pa.nulls(7)).replace(numbers("q", 7), numbers("q", 1 << 40))


def wrong_null_count() -> bytes:
    content = column(pa.array([b"x", None] * 7))
    return with_changed(content, numbers("q", 14, 7), numbers("q", 14, 5))


def shared_buffers() -> bytes:
    """Sixteen columns that are all the same megabytes of the body."""
    names = ("message_id", "subject", "to", "reply_to", "session_id", "correlation_id")
    text = "x" * (3 * MB // 2)
    content = stream(pa.record_batch({name: [text] for name in names}))
    schema, rest = split(content)
    length = numbers("q", len(text))
    first = rest.find(length) - 8
    found = rest[first : first + 16]
    at = first
    while (at := rest.find(length, at + 16)) > 0:
        rest = rest[: at - 8] + found + rest[at + 8 :]
    return schema + rest


def many_batches() -> bytes:
    content = column(pa.array([], pa.binary()))
    schema, batch = split(content)
    return schema + batch[:-8] * 10_001


def many_columns() -> bytes:
    return stream(pa.record_batch({f"c{n}": [1] for n in range(1_000)}))


def long_name() -> bytes:
    return column(BINARY, "n" * (NAME_BYTES_MAX + 1))


def misaligned() -> bytes:
    """A header that is one byte longer, which moves the body."""
    schema, rest = split(column(BINARY))
    length = struct.unpack_from("<i", rest, 4)[0]
    header, body = rest[8 : 8 + length], rest[8 + length :]
    return schema + rest[:4] + numbers("i", length + 1) + header + b"\0" + body


def long_header() -> bytes:
    schema, rest = split(column(BINARY))
    length = struct.unpack_from("<i", rest, 4)[0]
    header = rest[8 : 8 + length] + bytes(BATCH_HEADER_BYTES_MAX)
    return schema + rest[:4] + numbers("i", len(header)) + header + rest[8 + length :]


def union() -> bytes:
    kinds = pa.array([0, 1, 0], pa.int8())
    return column(pa.UnionArray.from_sparse(kinds, [BINARY, TEXT]))


def run_ends() -> bytes:
    return column(pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), BINARY[:2]))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "nested": nested,
    "dictionary": dictionary,
    "far offsets": far_offsets,
    "falling offsets": falling_offsets,
    "no text": no_text,
    "view": view,
    "more rows": more_rows(1 << 20),
    "far more rows": more_rows(1 << 60),
    "fewer rows than none": more_rows(-7),
    "nulls": nulls,
    "wrong null count": wrong_null_count,
    "shared buffers": shared_buffers,
    "many batches": many_batches,
    "many columns": many_columns,
    "long name": long_name,
    "misaligned": misaligned,
    "long header": long_header,
    "union": union,
    "run ends": run_ends,
    "compressed by zstd": lambda: column(BINARY, compression="zstd"),
    "compressed by lz4": lambda: column(BINARY, compression="lz4"),
    "of version 4": lambda: column(BINARY, metadata_version=pa.ipc.MetadataVersion.V4),
    "of the format before": lambda: column(BINARY, use_legacy_format=True),
    "a batch without a schema": lambda: split(column(BINARY))[1],
    "a schema twice": lambda: split(column(BINARY))[0] * 2,
    "a file": lambda: b"ARROW1\0\0" + column(BINARY),
    "nothing": lambda: b"",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--ephemeral", "--insecure", "--log-level", "error") as server:
        with server.client() as client:
            client.put("/v1/queues/q", json={}).raise_for_status()
        yield server


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[httpx.Client]:
    with server.client(headers={"content-type": ARROW}) as client:
        yield client


def peak_bytes(server: Served) -> int:
    """Return the most memory that a server has had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.parametrize("path", ["/v1/entities/q/batch", f"/v1/entities/q/staged{WHOSE}"])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_lie_is_rejected_and_the_server_lives(
    server: Served, client: httpx.Client, what: str, path: str
) -> None:
    response = client.post(path, content=HOSTILE[what]())
    assert (response.status_code, response.json()["type"]) == (400, "invalid-argument")
    assert client.get("/livez").status_code == 200
    queue = client.get("/v1/queues/q").json()
    assert (queue["active_count"], client.get("/v1/entities/q/staged").json()) == (
        0,
        {"staged": []},
    )


def test_a_compressed_batch_is_not_decompressed(server: Served, client: httpx.Client) -> None:
    """Gigabytes of zeros, in a body of some kilobytes."""
    schema, rest = split(column(pa.array([bytes(64 * MB)]), compression="zstd"))
    body = schema + rest[:-8] * 40
    assert len(body) < MB
    client.post("/v1/entities/q/batch", content=column(TEXT))
    before = peak_bytes(server)
    response = client.post("/v1/entities/q/batch", content=body)
    assert peak_bytes(server) - before < GROWN_BYTES_MAX
    assert (response.status_code, "compressed" in response.text) == (400, True)


def test_any_part_of_a_stream_is_read_or_rejected() -> None:
    """A stream cut off at every byte, and with a wrong byte at every place."""
    whole = stream(pa.record_batch({"message_id": TEXT, "body": BINARY, "hop_count": [1, 2, 3]}))
    rows = 0
    for end in range(len(whole)):
        rows += _rows(whole[:end])
    assert rows == 3, "only the end of the stream may be missing"
    for at in range(len(whole)):
        for changed in (whole[at] ^ 0x80, whole[at] ^ 1, 0xFF, 0):
            _rows(whole[:at] + bytes([changed]) + whole[at + 1 :])


def _rows(content: bytes) -> int:
    try:
        table = read_stream(content, MB)
    except InvalidArgument:
        return 0
    table.validate(full=True)
    table.to_pylist()
    return int(table.num_rows)
