"""Compressed request bodies, decompressed in bounded steps.

gzip is the only supported coding: its state takes 40 KB whatever a header says, and zlib returns at
most the requested number of bytes. A zstd frame may demand a window of 128 MB.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping

from onibus.core.errors import InvalidArgument
from onibus.protocols.http.problems import BodyTooLarge, WrongContentEncoding

_GZIP = 16 + zlib.MAX_WBITS
#: Bytes that one step reads, and returns at most: a few milliseconds of work.
_STEP_IN_BYTES, _STEP_OUT_BYTES = 256 << 10, 4 << 20
_MORE_THAN_ONE = "the body has bytes after its gzip stream: send one stream"


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Return whether a body is compressed; reject a coding that is not supported."""
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        return True
    if coding in ("identity", ""):
        return False
    raise WrongContentEncoding("Content-Encoding must be gzip or identity: compress with gzip")


async def decompress(body: bytes, bytes_max: int) -> AsyncIterator[bytes]:
    """Yield a body piece by piece, decompressed on a thread; at most `bytes_max` in all."""
    stream, size = zlib.decompressobj(_GZIP), 0
    for start in range(0, len(body), _STEP_IN_BYTES):
        if stream.eof:
            raise InvalidArgument(_MORE_THAN_ONE)
        some, piece = body[start : start + _STEP_IN_BYTES], b""
        # After a full piece the stream may have more, even if it has consumed all input.
        while some or len(piece) == _STEP_OUT_BYTES:
            try:
                piece = await asyncio.to_thread(stream.decompress, some, _STEP_OUT_BYTES)
            except zlib.error as error:
                raise InvalidArgument(f"the body is not gzip: {error}") from None
            size += len(piece)
            if size > bytes_max:
                raise BodyTooLarge(f"the decompressed body is too large: at most {bytes_max} bytes")
            yield piece
            some = stream.unconsumed_tail
    if not stream.eof:
        raise InvalidArgument("the gzip body is not complete")
    if stream.unused_data:
        raise InvalidArgument(_MORE_THAN_ONE)
