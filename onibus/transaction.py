"""A transaction: `async with bus.transaction() as tx: …` commits it, an error rolls it back."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from onibus.core.commands import COMPLETE, Settlement
from onibus.core.errors import InvalidArgument
from onibus.core.message import Message, ReceivedMessage, Sent
from onibus.core.rules.rule import Rule
from onibus.directory.entity_rules import with_rule_changed, without_rule
from onibus.directory.namespace import ChangeRules
from onibus.gateway import transacting
from onibus.gateway.transacting import COMMITTED, ROLLED_BACK, UNKNOWN
from onibus.receiver import Settler, token_of

if TYPE_CHECKING:
    from onibus.calls.caller import Caller


class Transaction:
    """Sends, settlements and changes of rules, done atomically by `commit` and not before.

    Name the source of a received message by its receiver or by the entity's name.
    """

    def __init__(self, bus: Caller, limit: int) -> None:
        self._bus = bus
        self._gathered = transacting.OpenTransaction(bus.broker, limit)

    async def send(self, entity: str, message: Message) -> None:
        """Send a message when the transaction commits."""
        await self.send_batch(entity, [message])

    async def send_batch(self, entity: str, messages: Sequence[Message]) -> None:
        """Send messages when the transaction commits."""
        if not isinstance(messages, (list, tuple)) or not messages:
            raise InvalidArgument("a batch must be a list of messages")
        self._bus.tell(lambda: self._gathered.send(entity, messages))

    async def complete(self, source: Settler | str, *messages: ReceivedMessage | bytes) -> None:
        """Complete messages when the transaction commits."""
        self._settle(source, messages, COMPLETE)

    async def abandon(
        self,
        source: Settler | str,
        message: ReceivedMessage | bytes,
        *,
        delay_ms: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Abandon a message when the transaction commits."""
        settlement = Settlement("abandon", delay_ms, properties=properties)
        self._settle(source, [message], settlement)

    async def defer(
        self,
        source: Settler | str,
        message: ReceivedMessage | bytes,
        *,
        delay_ms: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Defer a message when the transaction commits."""
        settlement = Settlement("defer", delay_ms, properties=properties)
        self._settle(source, [message], settlement)

    async def dead_letter(
        self,
        source: Settler | str,
        message: ReceivedMessage | bytes,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Dead-letter a message when the transaction commits."""
        settlement = Settlement(
            "dead-letter", reason=reason, description=description, properties=properties
        )
        self._settle(source, [message], settlement)

    async def create_rule(self, subscription: str, rule: Rule) -> None:
        """Add a rule to a subscription when the transaction commits (P11).

        Messages that the transaction sends follow the new rules. A partitioned topic rejects this.
        """
        self._change_rules(subscription, lambda rules: [*rules, rule])

    async def change_rule(self, subscription: str, rule: Rule) -> None:
        """Replace the rule of that name when the transaction commits."""
        self._change_rules(subscription, lambda rules: with_rule_changed(rules, rule))

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Remove a rule when the transaction commits."""
        self._change_rules(subscription, lambda rules: without_rule(rules, name))

    def _change_rules(self, subscription: str, change: ChangeRules) -> None:
        self._bus.tell(lambda: self._gathered.change_rules(subscription, change))

    async def commit(self) -> list[Sent]:
        """Commit; return a `Sent` for each message sent, in order."""
        sent: list[Sent] = await self._bus.ask(self._gathered.commit)
        return sent

    async def rollback(self) -> None:
        """Discard everything."""
        self._gathered.rollback()

    def _settle(
        self,
        source: Settler | str,
        messages: Sequence[ReceivedMessage | bytes],
        settlement: Settlement,
    ) -> None:
        name = source.entity if isinstance(source, Settler) else source
        session = source.session if isinstance(source, Settler) else None
        tokens = [token_of(message) for message in messages]
        self._bus.tell(lambda: self._gathered.settle(name, tokens, settlement, session))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        gathered = self._gathered
        try:
            if kind is None and gathered.ended not in (COMMITTED, ROLLED_BACK):
                await self.commit()
        finally:
            if gathered.ended not in (COMMITTED, UNKNOWN):
                gathered.rollback()
