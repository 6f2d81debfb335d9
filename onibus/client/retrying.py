"""When to ask again, after how long, and what to tell when it was no use.

- What never reached the server, or was refused for a while, is asked again: nothing was changed.
- What was sent and never answered is asked again where doing it twice does no harm: sends carry a
  MessageId, by which the bus knows them again (D1); a lock that is renewed twice is renewed.
- Where a request of which the first answer was lost is refused when asked again, the refusal may be
  the trace of its own success: that is told as Unknown, never as a plain refusal.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from onibus.client.asking import AnswerLost, Ask, NotSent
from onibus.client.problems import Unreachable
from onibus.core.errors import NoSession, OnibusError, SessionLocked, Unknown

#: Answers to a question rather than troubles that pass: told at once.
_TOLD_AT_ONCE = (NoSession, SessionLocked)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast a client asks again; the defaults bridge about ten seconds."""

    attempts: int = 8
    first_ms: int = 100
    longest_ms: int = 5_000

    def delay_s(self, attempt: int) -> float:
        """Return how long to wait after so many attempts: twice as long each time, and blurred."""
        longest = min(self.first_ms << (attempt - 1), self.longest_ms)
        return random.uniform(0.5, 1.0) * longest / 1000


class Attempts:
    """One request and what became of it so far."""

    def __init__(self, ask: Ask, retry: Retry) -> None:
        self._ask = ask
        self._retry = retry
        self._count = 0
        #: an attempt may have been done without our hearing of it
        self._unsure = False

    def failed(self, error: OnibusError) -> float:
        """Return after how many seconds to ask again, or raise what there is to tell."""
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
                f"{self._ask.method} {self._ask.path}: an answer was lost, and then: {error}; "
                "it may or may not have been done"
            )
        if isinstance(error, (NotSent, AnswerLost)):
            return Unreachable(f"the server cannot be reached: {error}")
        return error
