"""Dispositions of clients, and the responses to them.

| state of the disposition          | settlement                                               |
| accepted                          | complete                                                 |
| released                          | release, without counting a delivery                     |
| modified                          | abandon; with undeliverable-here: defer                  |
| rejected                          | dead-letter, with reason and description from its info   |
| transactional                     | one of these, when the transaction is discharged         |

Our response settles a delivery that the client has not settled, with the same outcome, or with
`rejected` and an error.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from onibus.core.commands import COMPLETE, HeldSession, Settlement
from onibus.core.errors import InvalidArgument, OnibusError
from onibus.gateway import settling
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import Described
from onibus.protocols.amqp.errors import AmqpError
from onibus.protocols.amqp.link import OutgoingLink
from onibus.protocols.amqp.service_bus.awaited import Awaited
from onibus.protocols.amqp.service_bus.incoming import UNKNOWN, plain_value
from onibus.protocols.amqp.service_bus.outgoing import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from onibus.protocols.amqp.service_bus.sender import rejected
from onibus.protocols.amqp.service_bus.transactions import is_transactional
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

_CODES = {
    "amqp:accepted:list": say.ACCEPTED,
    "amqp:rejected:list": say.REJECTED,
    "amqp:released:list": say.RELEASED,
    "amqp:modified:list": say.MODIFIED,
}


#: Deliveries of one disposition that are settled before others have their turn.
SETTLED_A_SLICE = 2_000


class Verdict(NamedTuple):
    """The settlement that a disposition asks for, and the outcome that confirms it."""

    settlement: Settlement
    echo: bytes


def verdict_of(state: Any) -> Verdict:
    """Return what a delivery state means."""
    if not isinstance(state, Described):
        raise InvalidArgument("a disposition must be accepted, rejected, released or modified")
    code = state.descriptor
    code = _CODES.get(code, 0) if isinstance(code, str) else code
    fields = state.value if isinstance(state.value, list) else []
    if code == say.ACCEPTED:
        return _COMPLETE
    if code == say.RELEASED:
        return Verdict(Settlement("release"), say.released())
    if code == say.MODIFIED:
        failed, elsewhere, annotations = (*fields, None, None, None)[:3]
        echo = [to.boolean(bool(failed)), to.boolean(bool(elsewhere)), to.NULL]
        properties = properties_of(annotations)
        settlement = Settlement("defer" if elsewhere else "abandon", properties=properties)
        return Verdict(settlement, say.performative(say.MODIFIED, echo))
    if code == say.REJECTED:
        return Verdict(_dead_letter(fields), say.rejected())
    raise InvalidArgument("a disposition must be accepted, rejected, released or modified")


_COMPLETE = Verdict(COMPLETE, say.accepted())


def _dead_letter(fields: list[Any]) -> Settlement:
    """Return the dead-lettering that an error asks for: its info has the reason, or itself."""
    error = fields[0] if fields else None
    parts = error.value if isinstance(error, Described) else None
    parts = (*parts, None, None, None) if isinstance(parts, list) else (None, None, None)
    info = dict(parts[2]) if isinstance(parts[2], dict) else {}
    reason = info.pop(DEAD_LETTER_REASON, None)
    description = info.pop(DEAD_LETTER_DESCRIPTION, None)
    if reason is None and parts[0] != "com.microsoft:dead-letter":
        reason, description = parts[0], description or parts[1]
    return Settlement(
        "dead-letter",
        reason=_text(reason),
        description=_text(description),
        properties=properties_of(info),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def properties_of(found: Any) -> dict[str, Any] | None:
    """Return properties that settling changes."""
    if not isinstance(found, dict) or not found:
        return None
    plain = {str(name): plain_value(value) for name, value in found.items()}
    return {name: value for name, value in plain.items() if value is not UNKNOWN}


class Settling:
    """Settles the deliveries of one link."""

    def __init__(self, client: Client, link: OutgoingLink, entity: str) -> None:
        self._client = client
        self._link = link
        self._entity = entity
        #: the session whose receiver settles: it must still hold it (B9)
        self.session: HeldSession | None = None

    def settle(self, ids: list[int], state: Any, settled: bool) -> None:
        """Do what a client says of deliveries."""
        unsettled = self._link.session.unsettled
        taken = [(one, unsettled.pop(one)[1]) for one in ids]
        if state is None and settled:
            # Settled without an outcome: the lock runs on, and out.
            return
        try:
            if is_transactional(state):
                self._in_transaction(taken, state, settled)
                return
            verdict = verdict_of(state)
        except (OnibusError, AmqpError) as error:
            self._client.transactions.spoil(state, error)
            self._refuse([] if settled else ids, error)
            return
        self._settle([(None if settled else one, token) for one, token in taken], verdict)

    def _settle(
        self, chosen: list[tuple[int | None, bytes]], verdict: Verdict, start: int = 0
    ) -> None:
        """Settle deliveries in slices, with the requests of others in between."""
        some = chosen[start : start + SETTLED_A_SLICE]
        if len(chosen) > start + SETTLED_A_SLICE:
            following = start + SETTLED_A_SLICE
            self._client.broker.call_soon(partial(self._settle, chosen, verdict, following))
        ids = [one for one, _ in some]
        tokens = [token for _, token in some]
        Awaited(self._client.connection, partial(self._settled, ids, verdict.echo)).ask(
            lambda reply: settling.settle_each(
                self._client.broker, self._entity, tokens, verdict.settlement, reply, self.session
            )
        )

    def _settled(self, ids: list[int | None], echo: bytes, kept: KeptReply) -> None:
        """Confirm the settled deliveries, and reject the rest."""
        waiting = [one for one in ids if one is not None]
        if kept.error is not None:
            self._confirm(waiting, echo, kept.error)
            return
        results = dict(zip(ids, kept.value, strict=True))
        self._confirm([one for one in waiting if results[one] is None], echo, None)
        for one in waiting:
            if results[one] is not None:
                self._confirm([one], echo, results[one])

    def _in_transaction(self, taken: list[tuple[int, bytes]], state: Any, settled: bool) -> None:
        fields = state.value if isinstance(state.value, list) else []
        verdict = verdict_of(fields[1] if len(fields) > 1 else None)
        if verdict.settlement.verb == "release":
            raise InvalidArgument("a transaction can only complete, abandon, defer or dead-letter")
        # Properties are counted roughly: they are few, and checked for themselves.
        size = len(taken) * len(repr(verdict.settlement.properties or ""))
        transaction, echo = self._client.transactions.of(state, verdict.echo, size)
        tokens = [token for _, token in taken]
        transaction.settle(self._entity, tokens, verdict.settlement, self.session)
        if not settled:
            self._confirm([one for one, _ in taken], echo, None)

    def _refuse(self, ids: list[int], error: BaseException) -> None:
        self._confirm(ids, b"", error)

    def _confirm(self, ids: list[int], echo: bytes, error: BaseException | None) -> None:
        if ids and self._link.is_open:
            state = echo if error is None else rejected(error, self._link)
            self._link.session.settled_by_us(ids, state)
