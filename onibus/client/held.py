"""Which locks are to be renewed, and when.

A lock is renewed when half of it is left, every ten seconds at least (the two machines' clocks may
differ), until its message is settled or `renew_ms` have passed. The clock that decides is this
machine's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from onibus.core.message import ReceivedMessage

#: How long locks are renewed if nobody says otherwise, as the Service Bus clients have it.
RENEW_MS = 300_000

_SOONEST_S, _LATEST_S = 0.3, 10.0


@dataclass(slots=True)
class Lock:
    """A lock that somebody wants to keep."""

    token: bytes
    #: monotonic: when to renew it, and when to leave it alone
    due: float
    until: float


class HeldLocks:
    """All locks of one receiver."""

    def __init__(self, renew_ms: int) -> None:
        self._renew_s = renew_ms / 1000
        self._locks: dict[bytes, Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def add(self, token: bytes, locked_until_ms: int | None) -> None:
        """Keep a lock."""
        if self._renew_s <= 0:
            return
        now = time.monotonic()
        until = now + self._renew_s
        self._locks[token] = Lock(token, now + _wait_s(locked_until_ms), until)

    def add_messages(self, messages: Iterable[ReceivedMessage]) -> None:
        """Keep the locks of messages that were received."""
        for message in messages:
            if message.token is not None:
                self.add(message.token, message.locked_until_ms)

    def drop(self, token: bytes | None) -> None:
        """Leave a lock alone: it is settled, or lost."""
        if token is not None:
            self._locks.pop(token, None)

    def renewed(self, lock: Lock, locked_until_ms: int | None) -> None:
        """A lock was renewed, or could not be this time."""
        lock.due = time.monotonic() + _wait_s(locked_until_ms)

    def due(self) -> list[Lock]:
        """Return the locks that are to be renewed now; forget those that were kept long enough."""
        now = time.monotonic()
        for lock in [lock for lock in self._locks.values() if lock.until <= now]:
            self.drop(lock.token)
        return [lock for lock in self._locks.values() if lock.due <= now]

    def next_s(self) -> float:
        """Return in how many seconds something is due."""
        now = time.monotonic()
        return max(min((lock.due for lock in self._locks.values()), default=now + 1) - now, 0.0)


def _wait_s(locked_until_ms: int | None) -> float:
    if locked_until_ms is None:
        return _SOONEST_S
    left = locked_until_ms / 1000 - time.time()
    return min(max(left / 2, _SOONEST_S), _LATEST_S)
