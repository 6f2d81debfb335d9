"""Files that only their owner can read, replaced atomically and durably."""

from __future__ import annotations

import os
from pathlib import Path

from onibus.store.files import sync_directory


def write_private(path: Path, content: bytes) -> None:
    """Create or replace a file."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(str(path.parent))
