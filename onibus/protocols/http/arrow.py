"""Arrow IPC streams as bodies of requests and responses."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from onibus.api.wire import ARROW
from onibus.core.errors import InvalidArgument, MessageTooLarge
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.protocols.http.arrow_headers import read_headers
from onibus.protocols.http.messages import Response

if TYPE_CHECKING:
    import pyarrow as pa
#: End of an Arrow IPC stream: a continuation of length zero.
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


#: It imports the others, and pyarrow.
_MODULES = (
    "onibus.gateway.bulk_sending",
    "onibus.core.claimed_rows",
    "onibus.core.log_batch",
)


#: Bytes that are written at once; a larger batch is copied on a thread.
_PIECE_BYTES = 1 << 20


def is_loaded() -> bool:
    """Return whether a request with Arrow rows finds its modules loaded."""
    return all(name in sys.modules for name in _MODULES)


def load() -> None:
    """Import the modules of Arrow requests, which takes about 0.1 s; any thread may do it."""
    # Without pyarrow the request fails with an error that says so.
    with contextlib.suppress(ImportError):
        for name in _MODULES:
            importlib.import_module(name)


def read_stream(body: bytes, bytes_max: int) -> pa.Table:
    """Return the validated rows of a request; any thread may call this.

    Arrow sees the stream only after its headers are checked (arrow_headers.py), and nothing reads a
    batch before it is validated: Arrow follows offsets wherever they lead.
    """
    # pyarrow is slow to import: only clients that send columns load it.
    import pyarrow as pa

    from onibus.core.arrow_block import SCHEMA, check_columns

    columns, headers = read_headers(body, len(SCHEMA))
    schema = pa.schema([(column.name, getattr(pa, column.kind)()) for column in columns])
    check_columns(schema)
    content, rows, size = pa.py_buffer(body), 0, 0
    batches: list[pa.RecordBatch] = []
    for header in headers:
        rows += header.rows
        if header.rows < 0 or rows > BATCH_COUNT_MAX or len(batches) == BATCH_COUNT_MAX:
            raise InvalidArgument(f"too many rows: a request takes at most {BATCH_COUNT_MAX}")
        try:
            message = content.slice(header.start, header.end - header.start)
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"the body is not a valid Arrow IPC stream: {error}") from None
        size += batch.nbytes
        if size > bytes_max:
            raise MessageTooLarge(f"the rows are too large: at most {bytes_max} bytes in memory")
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def table_response(schema: pa.Schema, batches: list[pa.RecordBatch]) -> Response:
    """Return a response that streams available batches, and releases each."""
    remaining, held = batches[::-1], sum([batch.nbytes for batch in batches])

    async def following() -> AsyncIterator[Any]:
        while remaining:
            yield remaining.pop()

    return Response(
        200,
        content_type=ARROW,
        stream=_pieces(schema, None, following()),
        held_bytes=held,
    )


async def stream_response(schema: pa.Schema, batches: AsyncIterator[Any]) -> Response:
    """Return a response that streams batches as they are read.

    The first batch is read before the response begins, so that an error can be reported.
    """
    first = await anext(batches, None)
    return Response(200, content_type=ARROW, stream=_pieces(schema, first, batches))


async def _serialized(batch: pa.RecordBatch) -> AsyncIterator[memoryview]:
    """Yield a batch as a message, copied once, in pieces that are quick to write."""
    large = batch.nbytes > _PIECE_BYTES
    message = await asyncio.to_thread(batch.serialize) if large else batch.serialize()
    content = memoryview(message)
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]


async def _pieces(
    schema: pa.Schema, first: pa.RecordBatch | None, batches: AsyncIterator[Any]
) -> AsyncIterator[bytes | memoryview]:
    """Yield a stream message by message, each copied once."""
    yield schema.serialize().to_pybytes()
    if first is not None:
        async for piece in _serialized(first):
            yield piece
        first = None
    async for batch in batches:
        async for piece in _serialized(batch):
            yield piece
    yield _END_OF_STREAM
