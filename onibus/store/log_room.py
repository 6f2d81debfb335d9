"""Room in the file of SQLite's log: a commit finds its place written already.

A file that becomes longer has its new blocks and its length to be made durable too, and a sync of
it takes half as long again as one of a file that is written over. So the file is made longer ahead
of the commits, a piece at a time, by zeros. No frame of a log looks like that: an opening that
reads the log stops where they begin.
"""

from __future__ import annotations

import contextlib
import os

from onibus.store.connection import PAGE_BYTES

#: A page of the log with what SQLite writes before it.
FRAME_BYTES = PAGE_BYTES + 24
#: A log that is shorter is left as it is: many stores never have a longer one.
GROWS_FROM = 1 << 20
#: With less room than this the file is made longer by a piece; one commit waits for its writing.
ROOM_BYTES_MIN = 128 << 10
PIECE = bytes(512 << 10)


class LogRoom:
    """The file of one store's log, while the store is open."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def provide(self, pages: int) -> None:
        """Make the file longer where its end is near; `pages` of it are in use.

        To be called where a transaction for writing has begun and has written nothing yet: nobody
        else adds to the log then, or gives its file back, so its end is the end of all frames.
        """
        used = pages * FRAME_BYTES
        if used < GROWS_FROM:
            return
        # A disk that has no place for it may have one for the commit.
        with contextlib.suppress(OSError):
            length = os.fstat(self._file).st_size
            if length < used + ROOM_BYTES_MIN:
                os.pwrite(self._file, PIECE, length)

    def close(self) -> None:
        # Its number may be another file's by the time that somebody asks once more.
        file, self._file = self._file, -1
        os.close(file)
