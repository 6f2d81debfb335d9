"""A transaction: `with client.transaction() as tx: …` commits it; an error rolls it back.

Sends and settlements are collected here and sent in one request, which the server executes
atomically.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from onibus.api.delivery import TransactionOut
from onibus.api.messages import plain_values
from onibus.client.asking import path_of, post, without_none
from onibus.client.blocking.caller import Caller
from onibus.client.blocking.receiving import Settler
from onibus.client.convert import message_json, token_text, with_id
from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.core.message import Message, ReceivedMessage, Sent


class Transaction:
    """Sends and settlements that happen atomically, on `commit`.

    Name the source of a received message by its receiver or by the entity's name.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._sends: list[dict[str, Any]] = []
        self._settlements: list[dict[str, Any]] = []
        self._ended = False

    def send(self, entity: str, message: Message) -> None:
        """Send a message when the transaction commits."""
        self.send_batch(entity, [message])

    def send_batch(self, entity: str, messages: Sequence[Message]) -> None:
        """Send messages when the transaction commits."""
        if not isinstance(messages, (list, tuple)) or not messages:
            raise InvalidArgument("a batch must be a list of messages")
        told = [message_json(with_id(one)) for one in messages]
        self._sends.append({"entity": entity, "messages": told})

    def complete(self, source: Settler | str, *messages: ReceivedMessage | bytes) -> None:
        """Complete messages when the transaction commits."""
        self._settle(source, messages, "complete")

    def abandon(
        self,
        source: Settler | str,
        message: ReceivedMessage | bytes,
        *,
        delay_ms: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Abandon a message when the transaction commits."""
        self._settle(source, [message], "abandon", properties, delay_ms=delay_ms)

    def defer(
        self,
        source: Settler | str,
        message: ReceivedMessage | bytes,
        *,
        delay_ms: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Defer a message when the transaction commits."""
        self._settle(source, [message], "defer", properties, delay_ms=delay_ms)

    def dead_letter(
        self,
        source: Settler | str,
        message: ReceivedMessage | bytes,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Dead-letter a message when the transaction commits."""
        self._settle(
            source, [message], "dead-letter", properties, reason=reason, description=description
        )

    def commit(self) -> list[Sent]:
        """Commit; return a `Sent` for each message sent, in order."""
        if self._ended:
            raise InvalidOperation("the transaction has ended: begin a new one")
        self._ended = True
        body = {"sends": self._sends, "settlements": self._settlements}
        told: TransactionOut = self._caller.ask(post(path_of("transactions"), body), TransactionOut)
        return [Sent(one.sequence_number, one.duplicate_of) for one in told.sent]

    def rollback(self) -> None:
        """Discard everything."""
        self._ended = True

    def _settle(
        self,
        source: Settler | str,
        messages: Sequence[ReceivedMessage | bytes],
        verb: str,
        properties: dict[str, Any] | None = None,
        **given: Any,
    ) -> None:
        name = source if isinstance(source, str) else source.entity
        tokens = [token_text(message) for message in messages]
        changed = None if properties is None else plain_values(properties)
        self._settlements.append(
            without_none(entity=name, tokens=tokens, verb=verb, properties=changed, **given)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._ended and (self._sends or self._settlements):
            self.commit()
        self._ended = True
