"""Receiving from a queue or a subscription, and settling received messages.

The receiver renews locks in the background until the messages are settled, for five minutes by
default; `renew_ms=0` disables this. A closed receiver stops renewing locks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, cast

from onibus.api.delivery import LockedUntil
from onibus.api.messages import Messages, plain_values
from onibus.client.aio.caller import AsyncCaller
from onibus.client.aio.renewing import Renewals
from onibus.client.asking import WAIT_MS_MAX, Ask, path_of, post, without_none
from onibus.client.convert import received_of, token_text
from onibus.client.held import RENEW_MS
from onibus.core.message import ReceivedMessage


class AsyncSettler:
    """Settlements, which every receiver offers."""

    def __init__(self, caller: AsyncCaller, entity: str, renew_ms: int = RENEW_MS) -> None:
        self._caller = caller
        self.entity = entity
        self._renewals = Renewals(self._renew_once, renew_ms)

    def _path(self, *rest: str) -> str:
        return path_of("entities", self.entity, *rest)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop renewing locks; unsettled messages are delivered again when their locks expire."""
        await self._renewals.stop()

    async def complete(
        self, *messages: ReceivedMessage | bytes | Sequence[ReceivedMessage | bytes]
    ) -> None:
        """Complete messages, or lists of them, atomically."""
        flat: list[ReceivedMessage | bytes] = []
        for one in messages:
            flat += one if isinstance(one, (list, tuple)) else [cast("ReceivedMessage", one)]
        if not flat:
            return
        await self._settle("complete", flat, tokens=[token_text(one) for one in flat])

    async def abandon(
        self,
        message: ReceivedMessage | bytes,
        *,
        delay_ms: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Abandon a message, now or after a delay."""
        await self._settle_one("abandon", message, properties, delay_ms=delay_ms)

    async def defer(
        self,
        message: ReceivedMessage | bytes,
        *,
        delay_ms: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Defer a message, to receive it by sequence number; a delay makes it active again."""
        await self._settle_one("defer", message, properties, delay_ms=delay_ms)

    async def dead_letter(
        self,
        message: ReceivedMessage | bytes,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Move a message to the dead-letter queue."""
        await self._settle_one(
            "dead-letter", message, properties, reason=reason, description=description
        )

    async def renew(self, message: ReceivedMessage | bytes) -> int:
        """Renew a lock for another lock duration; return until when it holds."""
        until = await self._renew_token(bytes.fromhex(token_text(message)))
        if isinstance(message, ReceivedMessage):
            message.locked_until_ms = until
        return until

    async def _renew_once(self, token: bytes) -> int:
        return await self._renew_token(token, once=True)

    async def _renew_token(self, token: bytes, *, once: bool = False) -> int:
        ask = post(self._path("renew"), {"token": token.hex()}, once=once)
        told: LockedUntil = await self._caller.ask(ask, LockedUntil)
        return told.locked_until_ms

    async def _settle_one(
        self,
        verb: str,
        message: ReceivedMessage | bytes,
        properties: dict[str, Any] | None,
        **given: Any,
    ) -> None:
        changed = None if properties is None else plain_values(properties)
        told = without_none(token=token_text(message), properties=changed, **given)
        await self._settle(verb, [message], **told)

    async def _settle(
        self, verb: str, messages: Sequence[ReceivedMessage | bytes], **body: Any
    ) -> None:
        # Stop renewing before the response arrives.
        for one in messages:
            self._renewals.drop(one if isinstance(one, bytes) else one.token)
        await self._caller.answer(post(self._path(verb), body))

    async def _receive(self, ask: Ask) -> list[ReceivedMessage]:
        told: Messages = await self._caller.ask(ask, Messages)
        return self._keep([received_of(one) for one in told.messages])

    async def _receive_waiting(
        self, path: str, body: dict[str, Any], wait_ms: int, repeats: bool
    ) -> list[ReceivedMessage]:
        """Repeat the request until it returns something or the wait ends."""
        while True:
            slice_ms = min(wait_ms, WAIT_MS_MAX)
            given = body | {"wait_ms": slice_ms}
            received = await self._receive(post(path, given, repeats=repeats, wait_ms=slice_ms))
            wait_ms -= slice_ms
            if received or wait_ms <= 0:
                return received

    def _keep(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        self._renewals.add_messages(messages)
        self._renewals.start()
        return messages


class AsyncReceiver(AsyncSettler):
    """A receiver of a queue or a subscription, or of its dead-letter queue."""

    def __init__(
        self,
        caller: AsyncCaller,
        entity: str,
        dead_letters: bool = False,
        delete: bool = False,
        renew_ms: int = RENEW_MS,
    ) -> None:
        super().__init__(caller, entity, renew_ms)
        self._dead_letters = dead_letters
        self._delete = delete

    async def receive(self, limit: int = 1, *, wait_ms: int = 0) -> list[ReceivedMessage]:
        """Return up to `limit` messages; wait for the first one if none is available."""
        body = {"limit": limit, "dead_letters": self._dead_letters, "delete": self._delete}
        # Messages deleted on the way here are lost: raise that instead of asking again.
        return await self._receive_waiting(
            self._path("receive"), body, wait_ms, repeats=not self._delete
        )

    async def receive_deferred(self, numbers: Sequence[int]) -> list[ReceivedMessage]:
        """Return deferred messages by sequence number; if one is not found, return none."""
        body = {
            "numbers": list(numbers),
            "dead_letters": self._dead_letters,
            "delete": self._delete,
        }
        return await self._receive(
            post(self._path("receive-deferred"), body, repeats=not self._delete)
        )

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while True:
            for message in await self.receive(wait_ms=WAIT_MS_MAX):
                yield message
                # The caller wants the next message, so it has finished this one.
                self._renewals.drop(message.token)
