"""The witness: a small file next to a store that records the store's position.

A flipped bit in a write-ahead log makes SQLite end the log there: the later commits disappear
without an error. The witness reveals that. It is written after a commit has returned and is never
synced, so it is never ahead of durable data; a store behind its witness has lost commits. It also
records the length of the main file, since SQLite does not notice missing pages at its end while
there is a log.

It has two slots. The first is synced when the store is opened and then stays unchanged; the second
is written after each commit. They are in different sectors, so a power cut that damages the second
leaves the first. A witness without a readable slot is damage and not the result of a power cut: the
store is not served. To continue without a witness, the operator removes it; the store is then
served, with an alarm.

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
#: Position of the second slot, in a different sector.
SECOND = 4_096


@dataclass(frozen=True, slots=True)
class Testimony:
    """Content of a witness."""

    store: bytes
    position: int
    length: int
    #: both slots are readable; otherwise the store may be further ahead
    whole: bool = True


def read(path: str) -> Testimony | None:
    """Return the witness's record of the last commit, or None if the file is missing."""
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
    """Writer of the witness of one open store."""

    def __init__(self, path: str, store: bytes) -> None:
        self._store = store
        if os.path.exists(path):
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            return
        # It gets its name once complete: a power cut leaves no witness, or a readable one.
        new = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(f"{path}.new", new, 0o644)
        try:
            self.settle(0, 0)
            os.rename(f"{path}.new", path)
        except BaseException:
            self.close()
            raise

    def write(self, position: int, length: int, at: int = SECOND) -> None:
        """Record the store's position."""
        fields = FIELDS.pack(MAGIC, self._store, position, length)
        # The commit is durable already: a failed witness write must not undo it.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, fields + CRC.pack(crc32(fields)), at)

    def settle(self, position: int, length: int) -> None:
        """Write both slots in turn, so that one of them is complete at any time."""
        for at in (SECOND, 0):
            self.write(position, length, at)
            with contextlib.suppress(OSError):
                os.fsync(self._file)

    def close(self) -> None:
        # Its number may belong to another file by the next use.
        file, self._file = self._file, -1
        os.close(file)
