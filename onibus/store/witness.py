"""The witness: a tiny file beside a store that remembers how far the store had come.

A flipped bit in a write-ahead log makes SQLite believe that the log ends there: the commits after
it are gone without an error. The witness notices. It is written after a commit has returned and
is never synced, so it is never ahead of what was durable; a store that is behind its witness has
lost something. It also knows how long the main file was, since SQLite does not miss pages cut off
its end while there is a log.

There are two slots. The first one is synced when the store is opened and stays as it is; the second
one is written after each commit. Both are in different sectors, so a power cut that garbles the
second one leaves the first. A witness without a readable slot is damage, not the work of a power
cut: the store is not served. To continue without a witness, the operator removes it; the store is
then served, with an alarm.

Each slot, little-endian, 44 bytes, at 0 and at 4,096. Versions up to 0.1.0 have only the first one:

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
from dataclasses import dataclass, replace
from zlib import crc32

from onibus.core.errors import Damaged

MAGIC = b"OBW1"
FIELDS = struct.Struct("<4s16sQQ4x")
CRC = struct.Struct("<I")
SLOT_BYTES = FIELDS.size + CRC.size
#: Where the second slot begins: no sector has both.
SECOND = 4_096


@dataclass(frozen=True, slots=True)
class Testimony:
    """What a witness says."""

    store: bytes
    position: int
    length: int
    #: both slots can be read; if not, the store may have come further
    whole: bool = True


def read(path: str) -> Testimony | None:
    """Return what the witness says of the last commit; None if the file is missing."""
    try:
        with open(path, "rb") as file:
            content = file.read(SECOND + SLOT_BYTES)
    except FileNotFoundError:
        return None
    found = [_decode(content[at : at + SLOT_BYTES]) for at in (SECOND, 0)]
    readable = [testimony for testimony in found if testimony is not None]
    if not readable:
        raise Damaged(
            f"cannot read {path}: the witness of the store is damaged. Nothing was changed. Run "
            "`onibus check`, then remove that file to continue without it"
        )
    last = max(readable, key=lambda testimony: testimony.position)
    # Versions up to 0.1.0 have only one slot.
    return last if len(readable) == 2 or len(content) <= SECOND else replace(last, whole=False)


def _decode(slot: bytes) -> Testimony | None:
    if len(slot) != SLOT_BYTES:
        return None
    (crc,) = CRC.unpack_from(slot, FIELDS.size)
    magic, store, position, length = FIELDS.unpack_from(slot)
    if magic != MAGIC or crc != crc32(slot[: FIELDS.size]):
        return None
    return Testimony(store, position, length)


class Witness:
    """Writes the witness of one open store."""

    def __init__(self, path: str, store: bytes) -> None:
        self._store = store
        if os.path.exists(path):
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            return
        # It gets its name when it is whole: a power cut leaves no witness, or one that reads well.
        new = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(f"{path}.new", new, 0o644)
        try:
            self.settle(0, 0)
            os.rename(f"{path}.new", path)
        except BaseException:
            self.close()
            raise

    def write(self, position: int, length: int, at: int = SECOND) -> None:
        """Note how far the store has come."""
        fields = FIELDS.pack(MAGIC, self._store, position, length)
        # The commit it follows is durable; a witness that cannot be written must not undo that.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, fields + CRC.pack(crc32(fields)), at)

    def settle(self, position: int, length: int) -> None:
        """Write both slots, one after the other, so that one of them is whole at any time."""
        for at in (SECOND, 0):
            self.write(position, length, at)
            with contextlib.suppress(OSError):
                os.fsync(self._file)

    def close(self) -> None:
        # Its number may be another file's by the time that somebody writes once more.
        file, self._file = self._file, -1
        os.close(file)
