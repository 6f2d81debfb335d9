"""Preallocated space in the file of SQLite's log, so that commits overwrite existing bytes.

When a file grows, its new blocks and its length must become durable too, and a sync takes half as
long again as one of an overwritten file. So the file grows ahead of the commits, a piece of zeros
at a time. No frame of a log looks like that: an opening that reads the log stops there.
"""

from __future__ import annotations

import contextlib
import os

from onibus.core.errors import Damaged
from onibus.store.connection import PAGE_BYTES

#: A page of the log with its frame header.
FRAME_BYTES = PAGE_BYTES + 24
#: A shorter log is left unchanged: many stores never have a longer one.
GROWS_FROM = 1 << 20
#: With less space than this the file grows by a piece, which one commit waits for.
ROOM_BYTES_MIN = 128 << 10
PIECE = bytes(512 << 10)


class LogRoom:
    """The file of a store's log, while the store is open."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def provide(self, pages: int) -> None:
        """Extend the file if its end is near; `pages` of it are in use. Reject a truncated file.

        Call it when a write transaction has begun and has written nothing yet. No other connection
        then adds to the log or truncates its file, so its end is the end of all frames.
        """
        used, length = pages * FRAME_BYTES, os.fstat(self._file).st_size
        if length < used:
            # The commit would leave a hole where acknowledged commits were.
            raise Damaged(
                f"the log was truncated to {length} bytes by another program and had {used}: "
                "restore the store's files from a backup"
            )
        if used >= GROWS_FROM and length < used + ROOM_BYTES_MIN:
            # A disk without space for this may still have some for the commit.
            with contextlib.suppress(OSError):
                os.pwrite(self._file, PIECE, length)

    def close(self) -> None:
        # Its number may belong to another file by the next use.
        file, self._file = self._file, -1
        os.close(file)
