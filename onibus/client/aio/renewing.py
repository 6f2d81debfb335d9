"""Lock renewal in a separate task, while messages are processed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from onibus.client.held import RENEW_MS, HeldLocks
from onibus.core.errors import OnibusError, Refused

#: Renews the lock of a token; returns until when it holds.
Renew = Callable[[bytes], Awaitable[int]]


class Renewals(HeldLocks):
    """Renewal of locks until they are dropped."""

    def __init__(self, renew: Renew, renew_ms: int = RENEW_MS) -> None:
        super().__init__(renew_ms)
        self._renew = renew
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task if it does not run."""
        if len(self) and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop renewing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while len(self):
            # Wake up often: a lock added in the meantime may be due first.
            await asyncio.sleep(min(self.next_s(), 0.25))
            for lock in self.due():
                try:
                    self.renewed(lock, await self._renew(lock.token))
                except Refused as error:
                    if not error.retryable:
                        self.drop(lock.token)
                    self.renewed(lock, None)
                except OnibusError:
                    self.renewed(lock, None)


async def sleep(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)
