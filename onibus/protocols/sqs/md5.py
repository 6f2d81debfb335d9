"""Digests by which SQS clients check what arrived: of a body, and of message attributes.

Of attributes it is the MD5 of, by rising name: the lengths (4 bytes, big-endian) and bytes of name
and data type, one byte (1 text, 2 binary), the length and bytes of the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import md5

from onibus.protocols.sqs.shapes import MessageAttribute

_TEXT, _BINARY = b"\x01", b"\x02"
#: This many body digests are kept, and up to as many again before the older half is dropped.
DIGESTS_KEPT = 8_192


class Digests:
    """The digests of recently sent bodies, for receives that soon follow.

    A body with a digest here was sent over SQS, so it has only characters that SQS carries.
    """

    __slots__ = ("_older", "_younger")

    def __init__(self) -> None:
        self._younger: dict[tuple[int, int], str] = {}
        self._older: dict[tuple[int, int], str] = {}

    def note(self, incarnation: int, number: int, digest: str) -> None:
        """Note the digest of a body stored in that queue under that sequence number."""
        self._younger[incarnation, number] = digest
        if len(self._younger) >= DIGESTS_KEPT:
            self._older, self._younger = self._younger, {}

    def find(self, incarnation: int, number: int) -> str | None:
        """Return the digest of a message's body, if it is kept."""
        key = (incarnation, number)
        return self._younger.get(key) or self._older.get(key)


def of_body(body: bytes) -> str:
    """Return the digest of a message's body."""
    return md5(body, usedforsecurity=False).hexdigest()


def of_attributes(attributes: Mapping[str, MessageAttribute]) -> str | None:
    """Return the digest of message attributes; None if the message has none."""
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
