"""Between calls and the broker: ask and wait, or ask and be told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from onibus.broker.broker import Broker
from onibus.broker.replies import Reply
from onibus.core.errors import BusClosed

T = TypeVar("T")


class Caller:
    """Somebody who gives commands to a broker on an event loop."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self._loop = loop

    async def ask(self, command: Callable[[Reply], None]) -> Any:
        """Give the broker a command and wait for its answer."""
        self._alive()
        reply: asyncio.Future[Any] = self._loop.create_future()
        command(reply)
        self.arm()
        return await reply

    def tell(self, question: Callable[[], T]) -> T:
        """Ask the broker something that needs no waiting."""
        self._alive()
        try:
            return question()
        finally:
            self.arm()

    def arm(self) -> None:
        """Be there when the broker next has something to do by itself."""
        raise NotImplementedError

    def _alive(self) -> None:
        if self.broker.closed:
            raise BusClosed("the bus was closed")
