"""How long an idle stream waits for rows at the server."""

from __future__ import annotations

import time
from collections.abc import Callable


class Idling:
    """Decides whether the next look for rows waits.

    It waits if Spark looks again right after it found nothing, as with trigger 0. It does not wait
    - after a batch: Spark may have one without rows, for what is due in its state
    - while other sources of the query have rows
    - with a trigger that looks rarely: the wait would make the trigger late.
    """

    def __init__(self, wait_ms: int, now: Callable[[], float] = time.monotonic) -> None:
        self._wait_ms = wait_ms
        self.now = now
        #: when the last look ended, if it found nothing and no batch came after it
        self._since: float | None = None

    def wait_ms(self) -> int:
        """Return how long the next look waits."""
        soon = self._since is not None and (self.now() - self._since) * 2_000 < self._wait_ms
        return self._wait_ms if soon else 0

    def looked(self, found: bool) -> None:
        """Note that a look has ended."""
        self._since = None if found else self.now()

    def work(self) -> None:
        """Note that Spark plans a batch."""
        self._since = None
