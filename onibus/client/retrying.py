"""Retry policy: when to repeat a request, after what delay, and which error to raise.

- A request that did not reach the server, or was rejected for a while, is repeated: nothing
  changed.
- A request without a response is repeated if that is safe: sends carry a MessageId, which the
  broker recognises (D1), and a lock may be renewed twice.
- If a repeated request is rejected after a lost response, the rejection may be the result of its
  own success. The client then raises Unknown, never a plain rejection.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from onibus.client.asking import AnswerLost, Ask, NotSent
from onibus.client.problems import Unreachable
from onibus.core.errors import NoSession, OnibusError, SessionLocked, Unknown

#: Errors that answer a request rather than pass with time: raised at once.
_TOLD_AT_ONCE = (NoSession, SessionLocked)


@dataclass(frozen=True, slots=True)
class Retry:
    """Number and pace of retries; the defaults cover about ten seconds."""

    attempts: int = 8
    first_ms: int = 100
    longest_ms: int = 5_000

    def delay_s(self, attempt: int) -> float:
        """Return the delay after a number of attempts: it doubles each time, with jitter."""
        longest = min(self.first_ms << (attempt - 1), self.longest_ms)
        return random.uniform(0.5, 1.0) * longest / 1000


class Attempts:
    """A request and its outcome so far."""

    def __init__(self, ask: Ask, retry: Retry) -> None:
        self._ask = ask
        self._retry = retry
        self._count = 0
        #: an attempt may have succeeded without a response
        self._unsure = False

    def failed(self, error: OnibusError) -> float:
        """Return the seconds before the next attempt, or raise the error."""
        self._count += 1
        lost = isinstance(error, (AnswerLost, Unknown))
        if lost and self._ask.changes:
            self._unsure = True
        again = error.retryable and not isinstance(error, _TOLD_AT_ONCE)
        if self._ask.once or (lost and not self._ask.repeats):
            again = False
        if again and self._count < self._retry.attempts:
            return self._retry.delay_s(self._count)
        raise self._told(error) from error

    def _told(self, error: OnibusError) -> OnibusError:
        if self._unsure:
            return Unknown(
                f"{self._ask.method} {self._ask.path}: a response was lost, then: {error}; "
                "check whether the operation happened before you repeat it"
            )
        if isinstance(error, (NotSent, AnswerLost)):
            return Unreachable(f"cannot reach the server: {error}")
        return error
