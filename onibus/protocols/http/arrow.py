"""Arrow IPC streams as bodies of requests and of answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from onibus.core.errors import InvalidArgument, MessageTooLarge
from onibus.protocols.http.messages import ARROW, Response

if TYPE_CHECKING:
    import pyarrow as pa


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
) -> AsyncIterator[bytes]:
    import pyarrow as pa

    pipe = _Pipe()
    writer = pa.ipc.new_stream(pa.PythonFile(pipe, "w"), schema)
    yield pipe.take()
    if first is not None:
        writer.write_batch(first)
        yield pipe.take()
        async for batch in batches:
            writer.write_batch(batch)
            yield pipe.take()
    writer.close()
    yield pipe.take()


class _Pipe:
    """A file that gives away what was written to it."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken, self._written = b"".join(self._written), []
        return taken

    def flush(self) -> None:
        """Everything is at hand already."""

    def close(self) -> None:
        """What was written is still to be taken."""
