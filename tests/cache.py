"""What tests get from package indexes: fetched once, whole, into the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a directory of this name; filled where it is not yet there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onibus"
    folder, making = cache / name, cache / f"{name}.making"
    cache.mkdir(parents=True, exist_ok=True)
    # Tests that run at the same time fetch it once.
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            # What a run that was stopped has left is begun anew.
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            fill(making)
            making.rename(folder)
    return folder
