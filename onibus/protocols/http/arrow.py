"""Arrow IPC streams as bodies of requests and of answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from onibus.core.errors import InvalidArgument, MessageTooLarge
from onibus.protocols.http.messages import ARROW, Response

if TYPE_CHECKING:
    import pyarrow as pa
#: What tells that nothing follows in an Arrow IPC stream: a continuation of no length.
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def read_stream(body: bytes, bytes_max: int) -> pa.Table:
    """Return the table of a stream that came from a client; any thread may do it.

    A stream can be compressed: `bytes_max` is what its rows may become in memory.
    """
    # pyarrow takes its time to import: not before somebody wants it.
    import pyarrow as pa

    batches = []
    size = 0
    try:
        with pa.ipc.open_stream(body) as reader:
            for batch in reader:
                size += batch.nbytes
                if size > bytes_max:
                    raise MessageTooLarge(f"rows have at most {bytes_max} bytes in memory")
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise InvalidArgument(f"the body is no Arrow IPC stream: {error}") from None


def table_response(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Response:
    """Return an answer that is a stream of batches which are at hand."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return Response(200, sink.getvalue().to_pybytes(), ARROW)


async def stream_response(schema: pa.Schema, batches: AsyncIterator[Any]) -> Response:
    """Return an answer that is a stream of batches, sent as they are read.

    The first one is read before anything is answered, so that an error can be told.
    """
    first = await anext(batches, None)
    return Response(200, content_type=ARROW, stream=_pieces(schema, first, batches))


async def _pieces(
    schema: pa.Schema, first: pa.RecordBatch | None, batches: AsyncIterator[Any]
) -> AsyncIterator[bytes | memoryview]:
    """Yield a stream message by message, each copied once."""
    yield schema.serialize().to_pybytes()
    if first is not None:
        yield memoryview(first.serialize())
        async for batch in batches:
            yield memoryview(batch.serialize())
    yield _END_OF_STREAM
