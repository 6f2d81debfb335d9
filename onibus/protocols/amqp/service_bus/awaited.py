"""Responses that wait for the disk: a stop of the server waits for them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onibus.core.errors import Unknown
from onibus.gateway.broker import Broker
from onibus.protocols.amqp.connection import Connection
from onibus.shard.replies import KeptReply


class Awaited(KeptReply):
    """A response that a client waits for; pending until it is sent or released."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection, then: Callable[[KeptReply], None]) -> None:
        super().__init__(then)
        self._connection = connection
        connection.under_way += 1

    def set_result(self, result: Any) -> None:
        self.let_go()
        super().set_result(result)

    def set_exception(self, exception: BaseException) -> None:
        self.let_go()
        super().set_exception(exception)

    def let_go(self) -> None:
        """Release it: no client waits for the response any longer."""
        if not self._answered:
            self._answered = True
            self._connection.under_way -= 1

    def ask(self, command: Callable[[KeptReply], object]) -> None:
        """Give the broker a command; an error that it raises at once becomes the outcome."""
        try:
            command(self)
        except Exception as error:
            if self.done():
                raise
            self.set_exception(error)


class Bounded(Awaited):
    """An outcome whose client gets a response within the time that it gives the server.

    If the time ends first, the client gets an error. A command that the broker is carrying out by
    then may still be done, so the error says that the outcome is unknown.
    """

    __slots__ = ("_broker", "_timeout_ms")

    def __init__(
        self,
        connection: Connection,
        then: Callable[[KeptReply], None],
        broker: Broker,
        timeout_ms: int,
    ) -> None:
        super().__init__(connection, then)
        self._broker = broker
        self._timeout_ms = timeout_ms
        broker.timers.set(("timeout", self), broker.clock.now() + timeout_ms)

    def let_go(self) -> None:
        self._broker.timers.cancel(("timeout", self))
        super().let_go()

    def time_out(self) -> None:
        """Respond to the client: its time is over."""
        if not self.done():
            told = f"the request took longer than its server timeout of {self._timeout_ms} ms"
            self.set_exception(Unknown(f"{told}; its outcome is unknown"))
