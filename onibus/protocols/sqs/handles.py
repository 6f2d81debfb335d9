"""Receipt handles: the incarnation of a queue (8 bytes) and a lock token, as a string."""

from __future__ import annotations

from functools import lru_cache

from onibus.directory.entity import Entity
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError

_LENGTH = 48


@lru_cache(1_024)
def beginning(incarnation: int) -> str:
    """Return what the handles of a queue begin with; the token follows, in hexadecimal."""
    return f"{incarnation:016x}"


def decode(handle: str | None, entity: Entity) -> bytes:
    """Return the lock token of a handle, or reject it."""
    if not handle:
        raise errors.missing("ReceiptHandle")
    if len(handle) == _LENGTH and handle.startswith(beginning(entity.incarnation)):
        text = handle[16:]
        try:
            token = bytes.fromhex(text)
        except ValueError:
            raise invalid(handle) from None
        # There may be more than one way to write it, and one is right.
        if token.hex() == text:
            return token
    raise invalid(handle)


def invalid(handle: str | None) -> SqsError:
    """Return the error for a handle that this queue never issued."""
    text = f'The input receipt handle "{handle}" is not a valid receipt handle.'
    return SqsError(errors.HANDLE_INVALID, text)
