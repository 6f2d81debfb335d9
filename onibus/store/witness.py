"""The witness: a tiny file beside a store that remembers how far the store had come.

A flipped bit in a write-ahead log makes SQLite believe that the log ends there: the commits after
it are gone without an error. The witness notices. It is written after a commit has returned and
is never synced, so it is never ahead of what was durable; a store that is behind its witness has
lost something. It also knows how long the main file was, since SQLite does not miss pages cut off
its end while there is a log.

A power cut may leave the witness old, torn or missing. That is no error, only one loss that would
not be noticed: whatever does not read well is treated as no witness.

The file, little-endian, 44 bytes:

    magic      4   "OBW1"
    store     16   identity of the store it belongs to
    position   8   number of the last commit
    length     8   length that the store's file is known to have on disk; it never shrinks
    spare      4   zero
    crc        4   CRC-32 of the 40 bytes before
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from zlib import crc32

MAGIC = b"OBW1"
FIELDS = struct.Struct("<4s16sQQ4x")
CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Testimony:
    """What a witness says."""

    store: bytes
    position: int
    length: int


def read(path: str) -> Testimony | None:
    """Return what the witness says, or None where there is none that can be believed."""
    try:
        with open(path, "rb") as file:
            content = file.read(FIELDS.size + CRC.size + 1)
    except OSError:
        return None
    if len(content) != FIELDS.size + CRC.size:
        return None
    (crc,) = CRC.unpack_from(content, FIELDS.size)
    magic, store, position, length = FIELDS.unpack_from(content)
    if magic != MAGIC or crc != crc32(content[: FIELDS.size]):
        return None
    return Testimony(store, position, length)


class Witness:
    """Writes the witness of one open store."""

    def __init__(self, path: str, store: bytes) -> None:
        self._store = store
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, position: int, length: int) -> None:
        """Note how far the store has come."""
        fields = FIELDS.pack(MAGIC, self._store, position, length)
        # The commit it follows is durable; a witness that cannot be written must not undo that.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, fields + CRC.pack(crc32(fields)), 0)

    def sync(self) -> None:
        """Wait until what was written last is on the disk."""
        with contextlib.suppress(OSError):
            os.fsync(self._file)

    def close(self) -> None:
        # Its number may be another file's by the time that somebody writes once more.
        file, self._file = self._file, -1
        os.close(file)
