"""Failed authentication, counted and limited by remote address.

Each address may fail `burst` times at once, and `per_second` times a second after that. Beyond that
the server does not check credentials from the address, so that keys cannot be guessed quickly. Only
failures count: an address whose clients authenticate correctly is never limited.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from onibus.core.errors import TooManyFailures

#: Addresses whose failures are recorded. The one with the oldest failure is dropped first.
ADDRESSES_KEPT = 10_000


class FailedAttempts:
    """Recent failures by address."""

    def __init__(
        self,
        burst: int = 100,
        per_second: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        #: failures that count and the time of the last one, in the order of that time
        self._failures: dict[str, tuple[float, float]] = {}
        #: attempts rejected unchecked
        self.refused = 0

    def check(self, address: str) -> None:
        """Reject an attempt if too many from its address have failed."""
        if address in self._failures and self._count(address) + 1 > self._burst:
            self.refused += 1
            raise TooManyFailures

    def failed(self, address: str) -> None:
        """Record a failed attempt."""
        count = self._count(address) + 1
        self._failures.pop(address, None)
        if len(self._failures) >= ADDRESSES_KEPT:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = count, self._clock()

    def _count(self, address: str) -> float:
        count, since = self._failures.get(address, (0.0, 0.0))
        return max(count - (self._clock() - since) * self._per_second, 0.0)
