"""Servers that leave syncs out, to show that a test sees what they lose."""

from __future__ import annotations

import os
import stat

import apsw

from onibus.store import connection, sqlite


def without_synced_commits() -> None:
    """Commit without waiting for the disk."""
    real = connection.open_writer

    def unsynced(path: str, vfs: str | None) -> apsw.Connection:
        writer = real(path, vfs)
        writer.pragma("synchronous", "OFF")
        return writer

    sqlite.open_writer = unsynced  # type: ignore[attr-defined]


def without_synced_names() -> None:
    """Sync no directory; SQLite still syncs that of a new log."""
    real = os.fsync

    def unsynced(file: int) -> None:
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            real(file)

    os.fsync = unsynced  # type: ignore[assignment]
