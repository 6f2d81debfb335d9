"""Commands from calls to the broker, with or without waiting for the response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from onibus.core.errors import BusClosed
from onibus.gateway.broker import Broker
from onibus.shard.replies import Reply

if TYPE_CHECKING:
    import pyarrow as pa

    from onibus.gateway.bulk_sending import Admission

T = TypeVar("T")


class Caller:
    """A source of commands to a broker on an event loop."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self._loop = loop

    async def ask(self, command: Callable[[Reply], object]) -> Any:
        """Send a command to the broker and wait for its response."""
        self.check_alive()
        reply: asyncio.Future[Any] = self._loop.create_future()
        command(reply)
        return await reply

    def tell(self, question: Callable[[], T]) -> T:
        """Send the broker a command that needs no waiting."""
        self.check_alive()
        return question()

    async def admit_arrow(
        self, entity: str, batch: pa.RecordBatch | pa.Table, to_stage: bool = False
    ) -> Admission:
        """Read the columns of a batch on a thread, while the event loop serves other callers."""
        # pyarrow is slow to import: only callers that send columns load it.
        from onibus.gateway.bulk_sending import Admission

        self.check_alive()
        admission = Admission(self.broker, entity, batch, to_stage)
        await asyncio.to_thread(admission.admit)
        return admission

    def check_alive(self) -> None:
        """Raise if the bus is closed."""
        if self.broker.closed:
            raise BusClosed("the bus is closed: open it again")
