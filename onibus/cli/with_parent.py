"""A command that stops when its parent process ends: `onibus up` runs its pipeline this way.

    python -m onibus.cli.with_parent pipeline capture --all --continuous

The parent holds the other end of the standard input, which ends however the parent does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from onibus.cli.entry import main


def _stop_with_parent() -> None:
    """Wait for the end of the standard input, then stop as on SIGTERM."""
    while os.read(sys.stdin.fileno(), 1):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    main()
