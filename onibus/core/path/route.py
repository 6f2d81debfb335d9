"""Route: which partition a message goes to."""

from __future__ import annotations

from zlib import crc32

from onibus.core.message import Message
from onibus.core.settings import LogSettings


def effective_key(message: Message, settings: LogSettings) -> str | None:
    """Return what decides the partition (P3), or None when any will do."""
    if message.session_id is not None:
        return message.session_id
    if message.partition_key is not None:
        return message.partition_key
    return message.message_id if settings.requires_duplicate_detection else None


def partition_of(key: str, count: int) -> int:
    """Return the partition of a key: CRC-32 of its UTF-8 bytes modulo the count (P4).

    Spark's `crc32` is the same function, so Spark can send each row to its partition.
    """
    return crc32(key.encode()) % count
