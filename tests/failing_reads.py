"""A disk whose reads fail, below SQLite's own file layer.

SQLite takes EIO for a malformed database. An error that an apsw VFS raises never gets there, so
the system call itself is replaced, for the files below one directory.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from onibus.store.connection import PAGE_BYTES

_Read = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int64,
    use_errno=True,
)


@contextmanager
def failing_reads(directory: Path, *, flips: int = 0) -> Iterator[None]:
    """Let every read that SQLite makes in files of a directory fail with EIO.

    With `flips`, that many reads of whole pages return a flipped bit instead, and none fails.
    """
    layer = apsw.VFS("failing-reads", "unix")
    name = "pread64" if layer.xGetSystemCall("pread64") else "pread"
    pointer = layer.xGetSystemCall(name)
    assert pointer is not None
    original = _Read(pointer)
    inside = f"{directory}/"
    left = flips

    def read(file: int, buffer: int, amount: int, offset: int) -> int:
        nonlocal left
        if not os.readlink(f"/proc/self/fd/{file}").startswith(inside):
            return int(original(file, buffer, amount, offset))
        if not flips:
            ctypes.set_errno(errno.EIO)
            return -1
        got = int(original(file, buffer, amount, offset))
        if left and got == PAGE_BYTES:
            left -= 1
            byte = ctypes.c_ubyte.from_address(buffer + PAGE_BYTES // 2)
            byte.value ^= 1
        return got

    replaced = _Read(read)
    layer.xSetSystemCall(name, ctypes.cast(replaced, ctypes.c_void_p).value or 0)
    try:
        yield
    finally:
        layer.xSetSystemCall(name, pointer)
        layer.unregister()
