"""Locks to renew, and when.

A lock is renewed at half its duration, and at least every ten seconds, since the clocks of the two
machines may differ. Renewal ends when the message is settled or after `renew_ms`. The client's
clock decides.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from onibus.core.message import ReceivedMessage

#: Default duration of lock renewal, as in the Service Bus clients.
RENEW_MS = 300_000

_SOONEST_S, _LATEST_S = 0.3, 10.0


@dataclass(slots=True)
class Lock:
    """A lock to keep."""

    token: bytes
    #: monotonic times: of the next renewal, and of the end of renewal
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
        """Start renewing a lock."""
        if self._renew_s <= 0:
            return
        now = time.monotonic()
        until = now + self._renew_s
        self._locks[token] = Lock(token, now + _wait_s(locked_until_ms), until)

    def add_messages(self, messages: Iterable[ReceivedMessage]) -> None:
        """Start renewing the locks of received messages."""
        for message in messages:
            if message.token is not None:
                self.add(message.token, message.locked_until_ms)

    def drop(self, token: bytes | None) -> None:
        """Stop renewing a lock that is settled or lost."""
        if token is not None:
            self._locks.pop(token, None)

    def renewed(self, lock: Lock, locked_until_ms: int | None) -> None:
        """Schedule the next renewal of a lock, after a success or a failure."""
        lock.due = time.monotonic() + _wait_s(locked_until_ms)

    def due(self) -> list[Lock]:
        """Return the locks to renew now; drop those whose renewal has ended."""
        now = time.monotonic()
        for lock in [lock for lock in self._locks.values() if lock.until <= now]:
            self.drop(lock.token)
        return [lock for lock in self._locks.values() if lock.due <= now]

    def next_s(self) -> float:
        """Return the seconds until the next renewal."""
        now = time.monotonic()
        return max(min((lock.due for lock in self._locks.values()), default=now + 1) - now, 0.0)


def _wait_s(locked_until_ms: int | None) -> float:
    if locked_until_ms is None:
        return _SOONEST_S
    left = locked_until_ms / 1000 - time.time()
    return min(max(left / 2, _SOONEST_S), _LATEST_S)
