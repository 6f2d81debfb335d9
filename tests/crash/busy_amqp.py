"""AMQP clients, by Qpid Proton, that keep a server busy and record requests and outcomes.

They use the entities of `busy_clients`, so a message often comes in by one protocol and leaves by
another. Each runs in its own thread, and connects again when its connection breaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from threading import Event as Flag
from typing import Any

from proton import (
    UNDESCRIBED,
    Array,
    ConnectionException,
    Data,
    Delivery,
    Described,
    Message,
    ProtonException,
    symbol,
    timestamp,
    uint,
)
from proton.reactor import Filter
from proton.utils import BlockingConnection

from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from tests.crash.busy_clients import QUEUE, SESSIONS, History
from tests.simulator.history import OK, REFUSED, UNKNOWN

_TOKENS = count(1)
_SESSION_FILTER = symbol("com.microsoft:session-filter")
_LOCKED_UNTIL = symbol("com.microsoft:locked-until-utc")
#: The time from the year 1, from which .NET counts, to 1970.
_YEAR_1970_MS = 62_135_596_800_000
#: The state that settles a message, and how often; `modified` with undeliverable-here defers.
ENDS = {"complete": 70, "abandon": 15, "defer": 15}
_STATES = {"complete": Delivery.ACCEPTED, "abandon": Delivery.RELEASED, "defer": Delivery.MODIFIED}


class _Management:
    """The two links of an entity's management node."""

    def __init__(self, connection: Any, entity: str) -> None:
        self._receiver = connection.create_receiver(f"{entity}/$management")
        self._sender = connection.create_sender(f"{entity}/$management")

    def call(self, asked: Message) -> Message:
        """Send a request; return the response."""
        asked.reply_to, asked.id = "me", next(_TOKENS)
        self._sender.send(asked)
        return _take(self._receiver, 10)


class AmqpClient:
    """One thread's connection, and what it does there."""

    def __init__(self, port: int, history: History, seed: int, stop: Flag) -> None:
        self._address = f"amqp://127.0.0.1:{port}"
        self._history = history
        self._name = f"amqp-{seed}"
        self._random = Random(seed)
        self._bodies = count()
        self._stop = stop
        #: a message whose send was not answered, with the operation that asks it
        self._pending: tuple[int, str, Message] | None = None
        self._deferred: list[int] = []
        self._connection: Any = None
        #: a receive on this link that has no message yet: its credit is still with the server
        self._waiting: dict[Any, int] = {}

    def run(self) -> None:
        """Be busy until stopped, and finish the send that was begun."""
        while not self._history.is_over and (not self._stop.is_set() or self._pending):
            try:
                self._connection = BlockingConnection(
                    self._address, timeout=10, user=ROOT_NAME, password=DEVELOPMENT_KEY,
                    allowed_mechs="PLAIN", sasl_enabled=True,
                )  # fmt: skip
                self._be_busy()
            except (ProtonException, OSError):
                time.sleep(0.01)
            finally:
                self._leave()

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        self._waiting.clear()
        if connection is not None:
            with suppress(ProtonException, OSError):
                connection.close()

    def _be_busy(self) -> None:
        senders = {name: self._connection.create_sender(name) for name in (QUEUE, SESSIONS)}
        receiver = self._connection.create_receiver(QUEUE)
        management = _Management(self._connection, QUEUE)
        acts: list[Callable[[], None]] = [
            lambda: self._receive(receiver),
            lambda: self._schedule(management),
            lambda: self._receive_deferred(management),
            self._in_session,
        ]
        while self._pending or not self._stop.is_set():
            self._send(senders)
            time.sleep(self._history.pause_s)
            if not self._stop.is_set():
                self._random.choice(acts)()

    # Sending

    def _message(self, entity: str) -> Message:
        body = f"{self._name}-{next(self._bodies)}"
        message = Message(body=body.encode(), id=f"{entity}-{body}", inferred=True)
        if entity == SESSIONS:
            message.group_id = f"s{self._random.randrange(6)}"
        return message

    def _send(self, senders: dict[str, Any]) -> None:
        """Send a message; one that was not answered is sent again on the next connection."""
        if self._pending is None:
            entity = self._random.choice((QUEUE, SESSIONS))
            message = self._message(entity)
            operation = self._history.invoke(
                "send", entity, client="amqp", body=_body(message),
                identity=message.id, session=message.group_id,
            )  # fmt: skip
            self._pending = operation, entity, message
        operation, entity, message = self._pending
        delivery = senders[entity].send(message)
        outcome = OK if delivery.remote_state == Delivery.ACCEPTED else UNKNOWN
        self._history.complete(operation, "send", entity, outcome, client="amqp")
        self._pending = None

    def _schedule(self, management: Any) -> None:
        message = self._message(QUEUE)
        due = time.time_ns() // 1_000_000 + self._random.randrange(1, 1_500)
        message.annotations = {symbol("x-opt-scheduled-enqueue-time"): timestamp(due)}
        body = _body(message)
        operation = self._history.invoke(
            "schedule", QUEUE, client="amqp", body=body, identity=message.id, due=due
        )
        entry = {"message-id": message.id, "message": message.encode()}
        answer = self._ask(management, "schedule-message", {"messages": [entry]})
        numbers = list(answer.body["sequence-numbers"]) if answer else [None]
        outcome = OK if answer else UNKNOWN
        self._history.complete(
            operation, "schedule", QUEUE, outcome, client="amqp", number=numbers[0]
        )

    def _ask(self, management: Any, operation: str, body: dict[str, Any]) -> Any:
        """Ask for a management operation; return the response, None if it is an error."""
        asked = Message(body=body, properties={"operation": f"com.microsoft:{operation}"})
        answer = management.call(asked)
        return answer if answer.properties["statusCode"] in (200, 202) else None

    # Receiving

    def _next(
        self, receiver: Any, entity: str, session: tuple[int, int] | None = None
    ) -> tuple[Any, int, str] | None:
        """Receive a message; return its delivery, number and token, None if none comes.

        A session is the operation that accepted it, and the end of its lock.
        """
        operation = self._waiting.pop(receiver, None)
        if operation is None:
            operation = self._history.invoke("receive", entity, client="amqp")
        try:
            message = _take(receiver, 0.03)
        except ProtonException:
            if self._connection.disconnected or receiver.link is None:
                raise
            self._waiting[receiver] = operation
            return None
        delivery = receiver.fetcher.unsettled.pop()
        number, token = self._received(operation, entity, message, session)
        return delivery, number, token

    def _received(
        self, operation: int, entity: str, message: Message, session: tuple[int, int] | None = None
    ) -> tuple[int, str]:
        noted: Any = message.annotations
        number, token = int(noted[symbol("x-opt-sequence-number")]), f"amqp {next(_TOKENS)}"
        if session is None:
            until: int | None = int(noted[symbol("x-opt-locked-until")])
        else:
            until = session[1] if self._history.binds(session[0]) else None
        self._history.complete(
            operation, "receive", entity, client="amqp", number=number, body=_body(message),
            session=message.group_id, stamp=int(noted[symbol("x-opt-enqueued-time")]),
            until=until, token=token,
        )  # fmt: skip
        return number, token

    def _receive(self, receiver: Any) -> None:
        for _ in range(4):
            got = self._next(receiver, QUEUE)
            if got is None:
                return
            (kind,) = self._random.choices(list(ENDS), list(ENDS.values()))
            self._settle(kind, QUEUE, got)

    def _settle(self, kind: str, entity: str, got: tuple[Any, int, str]) -> None:
        time.sleep(self._history.lateness_s(self._random))
        delivery, number, token = got
        facts = {"number": number, "token": token}
        operation = self._history.invoke(kind, entity, **facts)
        if kind == "defer":
            delivery.local.undeliverable = True
        delivery.update(_STATES[kind])
        self._connection.wait(lambda: delivery.settled, timeout=10)
        if not delivery.settled:
            raise ConnectionException("the server closed the connection before it settled")
        outcome = OK if delivery.remote_state == _STATES[kind] else REFUSED
        delivery.settle()
        self._history.complete(operation, kind, entity, outcome, **facts)
        if kind == "defer" and outcome == OK:
            self._deferred.append(number)

    def _receive_deferred(self, management: Any) -> None:
        if not self._deferred:
            return
        number = self._deferred.pop(0)
        operation = self._history.invoke("receive", QUEUE, client="amqp")
        asked = {"sequence-numbers": _array(Data.LONG, [number]), "receiver-settle-mode": uint(1)}
        answer = self._ask(management, "receive-by-sequence-number", asked)
        for one in answer.body["messages"] if answer else ():
            message = Message()
            message.decode(bytes(one["message"]))
            number, token = self._received(operation, QUEUE, message)
            operation = self._history.invoke("complete", QUEUE, number=number, token=token)
            done = {
                "disposition-status": "completed",
                "lock-tokens": _array(Data.UUID, [one["lock-token"]]),
            }
            outcome = OK if self._ask(management, "update-disposition", done) else REFUSED
            self._history.complete(
                operation, "complete", QUEUE, outcome, number=number, token=token
            )

    def _in_session(self) -> None:
        name = f"s{self._random.randrange(6)}"
        wanted = Filter({_SESSION_FILTER: Described(_SESSION_FILTER, name)})
        facts: dict[str, Any] = {"client": "amqp", "session": name}
        accepting = self._history.invoke("accept", SESSIONS, **facts)
        receiver = self._connection.create_receiver(SESSIONS, options=wanted)
        until = receiver.link.remote_properties[_LOCKED_UNTIL] // 10_000 - _YEAR_1970_MS
        self._history.complete(accepting, "accept", SESSIONS, until=until, **facts)
        try:
            for _ in range(4):
                got = self._next(receiver, SESSIONS, (accepting, until))
                if got is None:
                    return
                self._settle("complete", SESSIONS, got)
        finally:
            operation = self._history.invoke("close", SESSIONS, **facts)
            self._waiting.pop(receiver, None)
            receiver.close()
            self._history.complete(operation, "close", SESSIONS, **facts)


def _take(receiver: Any, timeout_s: float) -> Message:
    """Receive a message. If a server that stops closes the connection, Proton's wait just ends."""
    try:
        message: Message = receiver.receive(timeout_s)
    except IndexError:
        raise ConnectionException("the server closed the connection") from None
    return message


def _array(kind: Any, values: list[Any]) -> Any:
    described: Any = UNDESCRIBED
    return Array(described, kind, *values)


def _body(message: Message) -> str:
    return bytes(message.body).decode()  # type: ignore[arg-type]
