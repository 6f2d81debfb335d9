"""Nodes for requests: a request comes on one link, and its response goes out on another."""

from __future__ import annotations

from collections import deque
from typing import Any

from onibus.core.errors import InvalidArgument
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import decode
from onibus.protocols.amqp.errors import RESOURCE_LIMIT_EXCEEDED, DecodeError
from onibus.protocols.amqp.link import Delivery, Link, OutgoingLink
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.conditions import condition_of

#: Responses of a node that wait for credit or a window, and bytes of all responses of a connection.
#: A client that requests more without taking them loses its link.
WAITING_MAX = 1_000
WAITING_BYTES_MAX = 4 << 20


class Request:
    """A request: an operation, its properties, and a body."""

    __slots__ = ("body", "delivery", "message_id", "operation", "properties", "reply_to")

    def __init__(self, delivery: Delivery) -> None:
        payload = delivery.payload
        self.delivery = delivery
        #: as it came: the response has it in the same type
        self.message_id: bytes = to.NULL
        self.reply_to = ""
        self.properties: dict[Any, Any] = {}
        self.body: Any = None
        for code, _, value, _ in sections.split(payload):
            if code == sections.PROPERTIES:
                sections.list_at(payload, value)
                fields = sections.elements(payload, value)
                if fields:
                    self.message_id = fields[0]
                if len(fields) > 4:
                    self.reply_to = str(decode(fields[4])[0] or "")
            elif code == sections.APPLICATION_PROPERTIES:
                self.properties = sections.map_at(payload, value)
            elif code == sections.VALUE:
                self.body = decode(payload, value)[0]
        self.operation = self.properties.get("operation")

    def argument(self, name: str, *kinds: type) -> Any:
        """Return a value of the body's map, of one of these types."""
        value = self.body.get(name) if isinstance(self.body, dict) else None
        if not isinstance(value, kinds):
            raise InvalidArgument(f"{self.operation}: {name} is missing or has the wrong type")
        return value


class AnsweringNode:
    """Takes requests and sends responses."""

    #: the keys by which clients read the status of a response
    status_name = "statusCode"
    description_name = "statusDescription"
    condition_name = "errorCondition"

    def __init__(self) -> None:
        self._links: list[OutgoingLink] = []
        self._waiting: dict[OutgoingLink, deque[bytes]] = {}

    def join(self, link: OutgoingLink) -> None:
        """Send responses on this link, too."""
        self._links.append(link)
        self._waiting[link] = deque()

    def received(self, delivery: Delivery) -> None:
        """Take a request."""
        connection = delivery.link.session.connection
        count = sum(map(len, self._waiting.values()))
        if count >= WAITING_MAX or connection.unsent_bytes > WAITING_BYTES_MAX:
            told = "answers wait until you take them: give their link credit, then ask on"
            delivery.link.detach(RESOURCE_LIMIT_EXCEEDED, told)
            return
        delivery.settle(say.accepted())
        try:
            request = Request(delivery)
        except DecodeError as error:
            delivery.link.detach(error.condition, error.description)
            return
        try:
            self.answer(request)
        except Exception as error:
            self.fail(request, error)

    def answer(self, request: Request) -> None:
        raise NotImplementedError

    def fail(self, request: Request, error: BaseException) -> None:
        """Tell a client what went wrong."""
        condition, description, status = condition_of(error, request.delivery.link)
        self.say(request, status, description, condition=condition)

    def say(
        self,
        request: Request,
        status: int,
        description: str = "OK",
        body: bytes = b"",
        condition: str = "",
    ) -> None:
        """Respond to a request."""
        properties = [to.NULL] * 5 + [request.message_id]
        told = {
            self.status_name: to.int_(status),
            self.description_name: to.string(description),
        }
        if condition:
            told[self.condition_name] = to.symbol(condition)
        message = b"".join(
            (
                sections.section(sections.PROPERTIES, to.list_(properties)),
                sections.section(sections.APPLICATION_PROPERTIES, to.text_map(told)),
                sections.section(sections.VALUE, body or to.NULL),
            )
        )
        link = self._link_for(request)
        if link is None:
            return
        self._waiting[link].append(message)
        link.session.connection.unsent_bytes += len(message)
        self._send(link)

    def _link_for(self, request: Request) -> OutgoingLink | None:
        """Return the link on which a response is expected."""
        wanted = request.reply_to
        for link in self._links:
            if wanted and wanted in (link.name, say.address_of(link.attach.target)):
                return link
        session = request.delivery.link.session
        own = [link for link in self._links if link.session is session]
        return own[-1] if own else self._links[-1] if self._links else None

    def flowed(self, link: OutgoingLink) -> None:
        self._send(link)
        takes_more = self._waiting[link] and link.credit > 0
        if link.drain and not takes_more and not link.session.is_cutting:
            link.drained()

    def _send(self, link: OutgoingLink) -> None:
        """Send what waits, as far as the client takes it."""
        waiting, session = self._waiting[link], link.session
        while waiting and link.credit > 0 and session.room > 0:
            message = waiting.popleft()
            session.connection.unsent_bytes -= len(message)
            link.send(message, b"\0")

    def settled(self, link: OutgoingLink, ids: list[int], state: Any, settled: bool) -> None:
        """Ignore settlements: responses are settled when they are sent."""

    def detached(self, link: Link) -> None:
        if isinstance(link, OutgoingLink) and link in self._waiting:
            self._links.remove(link)
            unsent = self._waiting.pop(link)
            link.session.connection.unsent_bytes -= sum(map(len, unsent))
