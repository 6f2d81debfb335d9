"""Receipt handles: the incarnation of a queue (8 bytes) and the token of a hold, as text."""

from __future__ import annotations

import re

from onibus.broker.entity import Entity
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError

_HANDLE = re.compile(r"[0-9a-f]{48}")


def encode(incarnation: int, token: bytes) -> str:
    """Return the handle of a message that was received."""
    return (incarnation.to_bytes(8, "big") + token).hex()


def decode(handle: str | None, entity: Entity) -> bytes:
    """Return the token of a handle, or refuse it."""
    if not handle:
        raise errors.missing("ReceiptHandle")
    if _HANDLE.fullmatch(handle):
        data = bytes.fromhex(handle)
        if int.from_bytes(data[:8], "big") == entity.incarnation:
            return data[8:]
    raise invalid(handle)


def invalid(handle: str | None) -> SqsError:
    """A handle that this queue never gave out."""
    text = f'The input receipt handle "{handle}" is not a valid receipt handle.'
    return SqsError(errors.HANDLE_INVALID, text)
