"""Large bodies in responses: checked, digested and escaped in slices, with other requests between.

The response is built around marks, one per large body, in whichever form the client asked for. Then
it is streamed, and each body is escaped piece by piece in the place of its mark.
"""

from __future__ import annotations

import asyncio
import codecs
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from hashlib import md5
from typing import NamedTuple

from onibus.protocols.http.messages import Response
from onibus.protocols.sqs.messages import has_forbidden

#: Bytes of a body that are handled before others have their turn; larger bodies are handled so.
PIECE_BYTES = 256 << 10
#: Groups of three bytes, so that only the end of base64 is padded.
_BASE64_BYTES = PIECE_BYTES // 3 * 3
#: The longest character in UTF-8.
_CHARACTER_BYTES = 4

#: A string as it is written within a string of the response.
Escape = Callable[[str], bytes]


class Body(NamedTuple):
    """A body as a response has it."""

    #: stands for its text until the response is written; then the text itself is
    mark: str
    digest: str
    content: memoryview
    #: as base64: it is not a string that SQS carries
    encoded: bool

    def texts(self) -> Iterator[str]:
        """Yield its text, piece by piece."""
        if self.encoded:
            for start in range(0, len(self.content), _BASE64_BYTES):
                yield b64encode(self.content[start : start + _BASE64_BYTES]).decode()
            return
        decode = codecs.getincrementaldecoder("utf-8")().decode
        for start in range(0, len(self.content), PIECE_BYTES):
            yield decode(self.content[start : start + PIECE_BYTES])


async def read(body: bytes) -> Body:
    """Return how a body is shown, and its digest."""
    content, mark = memoryview(body), os.urandom(16).hex()
    encoded = not await _is_carried(content)
    shown = Body(mark, "", content, encoded)
    digest = md5(usedforsecurity=False)
    for text in shown.texts():
        digest.update(text.encode())
        await asyncio.sleep(0)
    return shown._replace(digest=digest.hexdigest())


async def _is_carried(content: memoryview) -> bool:
    """Return whether a body is a string that SQS carries."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for start in range(0, len(content), PIECE_BYTES):
            # Characters that are not carried may be cut by the end of a piece.
            piece = bytes(content[start : start + PIECE_BYTES + _CHARACTER_BYTES])
            if has_forbidden(piece):
                return False
            decode(piece[:PIECE_BYTES])
            await asyncio.sleep(0)
        decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


def streamed(response: Response, bodies: list[Body], escape: Escape) -> Response:
    """Return a response as a stream, with bodies in the place of their marks."""
    held = sum([len(one.content) for one in bodies])
    parts: list[bytes | Body] = []
    rest = response.body
    for one in bodies:
        before, _, rest = rest.partition(one.mark.encode())
        parts += [before, one]
    parts.append(rest)
    stream = _pieces(parts[::-1], escape)
    return Response(
        response.status, b"", response.content_type, response.headers, stream, held_bytes=held
    )


async def _pieces(remaining: list[bytes | Body], escape: Escape) -> AsyncIterator[bytes]:
    """Yield the response, and release each part."""
    while remaining:
        part = remaining.pop()
        if isinstance(part, bytes):
            yield part
            continue
        for text in part.texts():
            yield escape(text)
