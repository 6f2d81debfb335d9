"""Digests by which SQS clients check what arrived: of a body, and of message attributes.

Of attributes it is the MD5 of, by rising name: the lengths (4 bytes, big-endian) and bytes of name
and data type, one byte (1 text, 2 binary), the length and bytes of the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import md5

from onibus.protocols.sqs.shapes import MessageAttribute

_TEXT, _BINARY = b"\x01", b"\x02"


def of_body(body: bytes) -> str:
    """Return the digest of a message's body."""
    return md5(body, usedforsecurity=False).hexdigest()


def of_attributes(attributes: Mapping[str, MessageAttribute]) -> str | None:
    """Return the digest of message attributes; None where there are none."""
    if not attributes:
        return None
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        if attribute.binary_value is not None:
            kind, value = _BINARY, attribute.binary_value
        else:
            kind, value = _TEXT, (attribute.string_value or "").encode()
        for part in (name.encode(), (attribute.data_type or "").encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        digest.update(kind + len(value).to_bytes(4, "big") + value)
    return digest.hexdigest()
