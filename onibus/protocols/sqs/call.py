"""One request on its way through an action, and what an action is."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import msgspec

from onibus.bus import Bus
from onibus.directory.entity import Entity, Waiter
from onibus.gateway.receiving import stop_waiting
from onibus.protocols.http.messages import Request, Respond
from onibus.protocols.sqs.large_bodies import Body
from onibus.protocols.sqs.queues import Queues
from onibus.security.rights import NOBODY, Granted, Right
from onibus.shard.replies import Reply

if TYPE_CHECKING:
    from onibus.protocols.sqs.app import SqsApp


class SqsCall(msgspec.Struct, eq=False):
    """One request."""

    app: SqsApp
    bus: Bus
    queues: Queues
    request: Request
    respond: Respond
    request_id: str
    #: the region that the client believes to be in
    region: str
    granted: Granted = NOBODY
    action: str = ""
    #: additional response headers
    headers: tuple[tuple[str, str], ...] = ()
    #: large bodies: the result has marks in their places
    bodies: list[Body] = []

    def url(self, entity: Entity) -> str:
        return self.queues.url(entity, self.request)

    def arn(self, entity: Entity) -> str:
        return self.queues.arn(entity, self.region)

    def grant(self, right: Right, entity: str) -> None:
        """Ask for a right on an entity."""
        self.granted.grant(right, entity, time.time())

    def answer(self, result: Any = None) -> None:
        """Respond with the result of the action; None if it has none."""
        self.app.answer(self, result)

    def fail(self, error: BaseException) -> None:
        """Respond with an error."""
        self.app.fail(self, error)

    def ask(
        self,
        command: Callable[[Reply], Waiter | None],
        make: Callable[[Any], Any],
        refused: Callable[[BaseException], BaseException | None] | None = None,
    ) -> None:
        """Give the bus a command, and respond with what `make` makes of its result.

        It needs no task and no future, for the most frequent actions. `refused` may translate an
        error, or return None to ignore it.
        """
        bus = self.bus
        bus.check_alive()
        reply = SqsResponse(self, make, refused)
        try:
            waiter = command(reply)
        except Exception as error:
            reply.set_exception(error)
            return
        if waiter is not None:
            self.request.hurry = lambda: stop_waiting(bus.broker, waiter)


class SqsResponse(msgspec.Struct, eq=False):
    """A reply of the broker that becomes an SQS response."""

    call: SqsCall
    make: Callable[[Any], Any]
    refused: Callable[[BaseException], BaseException | None] | None = None
    answered: bool = False

    def done(self) -> bool:
        return self.answered

    def is_unwanted(self) -> bool:
        return self.call.request.peer.has_left

    def set_result(self, result: Any) -> None:
        self.answered = True
        call = self.call
        try:
            made = self.make(result)
        except Exception as error:
            call.fail(error)
        else:
            if isinstance(made, CoroutineType):
                call.app.answer_later(call, made)
            else:
                call.app.answer(call, made)

    def set_exception(self, exception: BaseException) -> None:
        self.answered = True
        error: BaseException | None = exception
        if self.refused is not None:
            error = self.refused(exception)
        if error is None:
            self.call.answer()
        else:
            self.call.fail(error)


#: Responds through `call.ask` or `call.answer`, now or later.
Fast = Callable[[SqsCall, Any], None]
#: Responds with what it returns.
Slow = Callable[[SqsCall, Any], Coroutine[Any, Any, Any]]

#: A client with any right to a queue may read its name and attributes.
ANY_RIGHT = (Right.SEND, Right.LISTEN, Right.MANAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that can be asked."""

    takes: Any
    #: one of them is enough
    rights: tuple[Right, ...]
    #: returns the entity that the input needs the right to; "" for all entities
    entity: Callable[[Queues, Any], str]
    fast: Fast | None = None
    slow: Slow | None = None
    #: it changes nothing
    reads: bool = False
