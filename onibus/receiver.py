"""Receivers of a queue, of a session and of a FIFO queue; each settles the messages it receives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import uuid4

from onibus.core.commands import (
    COMPLETE,
    Command,
    GetSessionState,
    HeldSession,
    ReleaseSession,
    RenewSession,
    SetSessionState,
    Settlement,
)
from onibus.core.errors import InvalidArgument, LockLost
from onibus.core.inspection import AcceptedSession
from onibus.core.limits import RECEIVED_MAX
from onibus.core.message import ReceivedMessage
from onibus.directory.entity import Entity
from onibus.gateway import receiving, settling
from onibus.shard.partition import ShardPartition

if TYPE_CHECKING:
    from onibus.bus import Bus

#: Longest wait of an iterator in one receive; it then starts the next.
_ITERATE_MS = 10_000


def token_of(message: ReceivedMessage | bytes) -> bytes:
    """Return the lock token of a held message."""
    if isinstance(message, bytes):
        return message
    if not isinstance(message, ReceivedMessage):
        raise InvalidArgument("pass a received message or its lock token")
    if message.token is None:
        raise LockLost("the message is not locked: it was peeked, or received and deleted")
    return message.token


async def _in_slices(
    limit: int,
    wait_ms: int,
    receive: Callable[[int, int], Coroutine[Any, Any, list[ReceivedMessage]]],
) -> list[ReceivedMessage]:
    """Receive up to `limit` messages, with other callers' turns between two slices."""
    received = some = await receive(limit, wait_ms)
    while len(some) == RECEIVED_MAX and len(received) < limit:
        await asyncio.sleep(0)
        some = await receive(limit - len(received), 0)
        received = received + some
    return received


class Settler:
    """Settlements, which every receiver offers."""

    def __init__(self, bus: Bus, entity: str) -> None:
        self.bus = bus
        self.entity = entity
        #: the session that it holds, with the token that proves it
        self.session: HeldSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    async def complete(
        self, *messages: ReceivedMessage | bytes | Sequence[ReceivedMessage | bytes]
    ) -> None:
        """Complete messages, or lists of them, atomically."""
        tokens: list[bytes] = []
        for one in messages:
            if isinstance(one, (list, tuple)):
                tokens += [token_of(message) for message in one]
            else:
                tokens.append(token_of(cast("ReceivedMessage | bytes", one)))
        if not tokens:
            return
        await self._settle(tokens, COMPLETE)

    async def abandon(
        self,
        message: ReceivedMessage | bytes,
        *,
        delay_ms: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Abandon a message, now or after a delay."""
        token = token_of(message)
        settlement = Settlement("abandon", delay_ms, properties=properties)
        await self._settle([token], settlement)

    async def defer(
        self,
        message: ReceivedMessage | bytes,
        *,
        delay_ms: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Defer a message, to receive it by sequence number; a delay makes it active again."""
        token = token_of(message)
        settlement = Settlement("defer", delay_ms, properties=properties)
        await self._settle([token], settlement)

    async def dead_letter(
        self,
        message: ReceivedMessage | bytes,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Move a message to the dead-letter queue."""
        token = token_of(message)
        settlement = Settlement(
            "dead-letter", reason=reason, description=description, properties=properties
        )
        await self._settle([token], settlement)

    async def renew(self, message: ReceivedMessage | bytes) -> int:
        """Renew a lock for another lock duration; return until when it holds."""
        until = await self._renew(token_of(message))
        if isinstance(message, ReceivedMessage):
            message.locked_until_ms = until
        return until

    async def _settle(self, tokens: list[bytes], settlement: Settlement) -> None:
        await self.bus.ask(
            lambda reply: settling.settle_all(
                self.bus.broker, self.entity, tokens, settlement, reply, self.session
            )
        )

    async def _renew(self, token: bytes, duration_ms: int | None = None) -> int:
        until: int = await self.bus.ask(
            lambda reply: settling.renew_one(
                self.bus.broker, self.entity, token, reply, duration_ms, self.session
            )
        )
        return until


class Receiver(Settler):
    """A receiver of a queue, or of its dead-letter queue."""

    def __init__(self, bus: Bus, entity: str, dead_letters: bool, delete: bool) -> None:
        super().__init__(bus, entity)
        self._dead = dead_letters
        self._take = delete

    async def receive(self, limit: int = 1, *, wait_ms: int = 0) -> list[ReceivedMessage]:
        """Return up to `limit` messages; wait for the first one if none is available."""

        async def receive_some(limit: int, wait_ms: int) -> list[ReceivedMessage]:
            received: list[ReceivedMessage] = await self.bus.ask(
                lambda reply: receiving.receive(
                    self.bus.broker,
                    self.entity,
                    limit,
                    wait_ms,
                    reply,
                    dead=self._dead,
                    take=self._take,
                )
            )
            return received

        if self._take:
            # They are deleted: each call returns what it has.
            return await receive_some(limit, wait_ms)
        return await _in_slices(limit, wait_ms, receive_some)

    async def receive_deferred(self, numbers: Sequence[int]) -> list[ReceivedMessage]:
        """Return deferred messages by sequence number; if one is not found, return none."""
        received: list[ReceivedMessage] = await self.bus.ask(
            lambda reply: settling.receive_deferred(
                self.bus.broker, self.entity, numbers, reply, dead=self._dead, take=self._take
            )
        )
        return received

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while True:
            for message in await self.receive(wait_ms=_ITERATE_MS):
                yield message


class SessionReceiver(Settler):
    """A receiver of one session, which no other receiver has at the same time.

    A non-exclusive receiver loses the session to one that presents its `lock_token`, with the
    messages that it holds: the new holder settles them (B9).
    """

    def __init__(
        self, bus: Bus, entity: Entity, partition: ShardPartition, accepted: AcceptedSession
    ) -> None:
        super().__init__(bus, entity.name)
        self._entity = entity
        self._partition = partition
        self.session: HeldSession = HeldSession(accepted.session_id, accepted.token)
        self.session_id = accepted.session_id
        #: what takes this session over; None if it is held exclusively
        self.lock_token = accepted.takeover
        self.locked_until_ms = accepted.locked_until_ms

    async def receive(
        self, limit: int = 1, *, wait_ms: int = 0, delete: bool = False
    ) -> list[ReceivedMessage]:
        """Return the session's next messages, in order."""

        async def receive_some(limit: int, wait_ms: int) -> list[ReceivedMessage]:
            received: list[ReceivedMessage] = await self.bus.ask(
                lambda reply: receiving.receive_session(
                    self.bus.broker,
                    self._entity,
                    self._partition,
                    self.session,
                    limit,
                    wait_ms,
                    reply,
                    take=delete,
                )
            )
            return received

        if delete:
            return await receive_some(limit, wait_ms)
        return await _in_slices(limit, wait_ms, receive_some)

    async def receive_deferred(self, numbers: Sequence[int]) -> list[ReceivedMessage]:
        """Return deferred messages of the session by number; if one is not found, return none."""
        received: list[ReceivedMessage] = await self.bus.ask(
            lambda reply: settling.receive_deferred(
                self.bus.broker,
                self.entity,
                numbers,
                reply,
                session=self.session,
            )
        )
        return received

    async def renew_lock(self) -> int:
        """Renew the session's lock for another lock duration; return until when it holds."""
        self.locked_until_ms = await self._on_session(
            RenewSession(self._entity.number, self.session)
        )
        return self.locked_until_ms

    async def get_state(self) -> bytes | None:
        """Return the state of the session."""
        command = GetSessionState(self._entity.number, self.session)
        return self.bus.tell(lambda: self.bus.broker.use(self._entity, self._partition, command))

    async def set_state(self, state: bytes | None) -> None:
        """Set the state of the session; None clears it."""
        await self._on_session(SetSessionState(self._entity.number, self.session, state))

    async def close(self) -> None:
        """Release the session and its messages, without counting a delivery."""
        await self._on_session(ReleaseSession(self._entity.number, self.session))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except LockLost:
            # The lock has expired: there is nothing to release.
            return

    async def _on_session(self, command: Command[Any]) -> Any:
        broker = self.bus.broker
        return await self.bus.ask(
            lambda reply: settling.on_session(broker, self._entity, self._partition, command, reply)
        )


class FifoReceiver(Settler):
    """A receiver of a FIFO queue, group by group (F9, F10)."""

    def __init__(self, bus: Bus, entity: str) -> None:
        super().__init__(bus, entity)
        #: the attempt id of the last receive, given or generated
        self.attempt_id = ""

    async def receive(
        self,
        limit: int = 1,
        *,
        wait_ms: int = 0,
        visibility_ms: int | None = None,
        attempt_id: str | None = None,
    ) -> list[ReceivedMessage]:
        """Return messages of groups without a message in flight.

        The same attempt id returns the same messages again while they are in flight.
        """
        chosen = self.attempt_id = uuid4().hex if attempt_id is None else attempt_id
        received: list[ReceivedMessage] = await self.bus.ask(
            lambda reply: receiving.receive_fifo(
                self.bus.broker,
                self.entity,
                limit,
                wait_ms,
                reply,
                visibility_ms=visibility_ms,
                attempt_id=chosen,
            )
        )
        return received

    async def receive_deferred(self, numbers: Sequence[int]) -> list[ReceivedMessage]:
        """Return deferred messages by sequence number; if one is not found, return none."""
        received: list[ReceivedMessage] = await self.bus.ask(
            lambda reply: settling.receive_deferred(self.bus.broker, self.entity, numbers, reply)
        )
        return received

    async def change_visibility(self, message: ReceivedMessage | bytes, visibility_ms: int) -> int:
        """Keep a message in flight for this long from now; 0 makes it visible."""
        if not isinstance(visibility_ms, int):
            raise InvalidArgument("visibility_ms must be a whole number")
        return await self._renew(token_of(message), visibility_ms)
