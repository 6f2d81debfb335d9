"""Lock renewal in a separate thread, while messages are processed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from onibus.client.held import RENEW_MS, HeldLocks, Lock
from onibus.core.errors import OnibusError, Refused
from onibus.core.message import ReceivedMessage

#: Renews the lock of a token; returns until when it holds.
Renew = Callable[[bytes], int]


class Renewals(HeldLocks):
    """Renewal of locks until they are dropped. Any thread may call it."""

    def __init__(self, renew: Renew, renew_ms: int = RENEW_MS) -> None:
        super().__init__(renew_ms)
        self._renew = renew
        self._guard = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add_messages(self, messages: Iterable[ReceivedMessage]) -> None:
        with self._guard:
            super().add_messages(messages)

    def drop(self, token: bytes | None) -> None:
        with self._guard:
            super().drop(token)

    def due(self) -> list[Lock]:
        with self._guard:
            return super().due()

    def next_s(self) -> float:
        with self._guard:
            return super().next_s()

    def start(self) -> None:
        """Start the thread if it does not run."""
        with self._guard:
            if len(self) and (self._thread is None or not self._thread.is_alive()):
                self._ended = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._ended,), name="onibus-renewals", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Stop renewing."""
        thread, self._thread = self._thread, None
        self._ended.set()
        if thread is not None:
            thread.join()

    def _run(self, ended: threading.Event) -> None:
        # Wake up often: a lock added in the meantime may be due first.
        while not ended.wait(min(self.next_s(), 0.25)):
            with self._guard:
                if not len(self):
                    # The next lock starts a new thread.
                    if self._ended is ended:
                        self._thread = None
                    return
            for lock in self.due():
                try:
                    self.renewed(lock, self._renew(lock.token))
                except Refused as error:
                    if not error.retryable:
                        self.drop(lock.token)
                    self.renewed(lock, None)
                except OnibusError:
                    self.renewed(lock, None)


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)
