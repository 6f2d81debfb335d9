"""Between calls and the broker: ask and wait, or ask and be told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from onibus.broker.broker import Broker
from onibus.broker.replies import Reply
from onibus.core.errors import BusClosed

if TYPE_CHECKING:
    import pyarrow as pa

    from onibus.broker.bulk_sending import Admission

T = TypeVar("T")


class Caller:
    """Somebody who gives commands to a broker on an event loop."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self._loop = loop

    async def ask(self, command: Callable[[Reply], object]) -> Any:
        """Give the broker a command and wait for its answer."""
        self.check_alive()
        reply: asyncio.Future[Any] = self._loop.create_future()
        command(reply)
        self.arm()
        return await reply

    def tell(self, question: Callable[[], T]) -> T:
        """Ask the broker something that needs no waiting."""
        self.check_alive()
        try:
            return question()
        finally:
            self.arm()

    async def _admit_arrow(
        self, entity: str, batch: pa.RecordBatch | pa.Table, to_stage: bool = False
    ) -> Admission:
        """Look at the columns of a batch beside the loop, which serves others meanwhile."""
        # pyarrow takes long to import: only those who send in columns wait for it.
        from onibus.broker.bulk_sending import Admission

        self.check_alive()
        admission = Admission(self.broker, entity, batch, to_stage)
        await asyncio.to_thread(admission.admit)
        return admission

    def arm(self) -> None:
        """Be there when the broker next has something to do by itself."""
        raise NotImplementedError

    def check_alive(self) -> None:
        """Refuse where the bus was closed."""
        if self.broker.closed:
            raise BusClosed("the bus was closed")
