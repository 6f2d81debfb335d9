"""What clients say is to become of deliveries, and what they are told of it.

| state of the disposition          | what it means here                                       |
| accepted                          | complete                                                 |
| released                          | give back, no delivery counted                           |
| modified                          | abandon; with undeliverable-here: defer                  |
| rejected                          | dead-letter, with reason and description from its info   |
| transactional                     | one of these, when the transaction is discharged         |

A delivery that the client has not settled itself is settled by our answer, with the same outcome,
or with `rejected` and an error. What is completed in one burst is completed together.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from onibus.broker import settling
from onibus.broker.replies import Outcome
from onibus.broker.transacting import verb
from onibus.core.errors import InvalidArgument, OnibusError
from onibus.core.lifecycle import Input
from onibus.core.path.settle import abandon, defer, give_back, reject
from onibus.core.staged import Change
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

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

_CODES = {
    "amqp:accepted:list": say.ACCEPTED,
    "amqp:rejected:list": say.REJECTED,
    "amqp:released:list": say.RELEASED,
    "amqp:modified:list": say.MODIFIED,
}
RELEASE = "release"


class Verdict:
    """What is to become of a delivery, and how that is confirmed."""

    __slots__ = ("change", "echo")

    def __init__(self, change: Change, echo: bytes) -> None:
        self.change = change
        self.echo = echo


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
        return Verdict(verb(RELEASE), say.released())
    if code == say.MODIFIED:
        failed, elsewhere, annotations = (*fields, None, None, None)[:3]
        echo = [to.boolean(bool(failed)), to.boolean(bool(elsewhere)), to.NULL]
        name = "defer" if elsewhere else "abandon"
        change = verb(name, properties=properties_of(annotations))
        return Verdict(change, say.performative(say.MODIFIED, echo))
    if code == say.REJECTED:
        return Verdict(_dead_letter(fields), say.rejected())
    raise InvalidArgument("a disposition must be accepted, rejected, released or modified")


_COMPLETE = Verdict(verb("complete"), say.accepted())


def _dead_letter(fields: list[Any]) -> Change:
    """Return the dead-lettering that an error asks for: its info has the reason, or itself."""
    error = fields[0] if fields else None
    parts = error.value if isinstance(error, Described) else None
    parts = (*parts, None, None, None) if isinstance(parts, list) else (None, None, None)
    info = dict(parts[2]) if isinstance(parts[2], dict) else {}
    reason = info.pop(DEAD_LETTER_REASON, None)
    description = info.pop(DEAD_LETTER_DESCRIPTION, None)
    if reason is None and parts[0] != "com.microsoft:dead-letter":
        reason, description = parts[0], description or parts[1]
    return verb(
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


def act_of(token: bytes, change: Change) -> Any:
    """Return the command of the core that does a change to the message that a token holds."""
    properties = change.properties
    if change.verb == "abandon":
        return lambda part, now, out: abandon(part, token, now, out, 0, properties)
    if change.verb == "defer":
        return lambda part, now, out: defer(part, token, now, out, 0, properties)
    if change.verb == "dead-letter":
        return lambda part, now, out: reject(
            part, token, out, change.reason, change.description, properties, now
        )
    assert change.verb == RELEASE
    return lambda part, now, out: give_back(part, part.held_by(token)[0], Input.RELEASE, now, out)


class Settling:
    """Settles the deliveries of one link."""

    def __init__(self, client: Client, link: OutgoingLink, entity: str) -> None:
        self._client = client
        self._link = link
        self._entity = entity
        #: the session whose receiver settles: it must still hold it (B9)
        self.session: settling.Held | None = None
        #: ids and tokens that are completed when the burst is over; None where nobody waits
        self._completing: list[tuple[int | None, bytes]] = []

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
        if verdict is _COMPLETE:
            if not self._completing:
                self._link.session.connection.later(self)
            self._completing += [(None if settled else one, token) for one, token in taken]
            return
        for one, token in taken:
            self._settle_one(None if settled else one, token, verdict)

    def _settle_one(self, delivery_id: int | None, token: bytes, verdict: Verdict) -> None:
        def done(outcome: Outcome) -> None:
            if delivery_id is not None:
                self._confirm([delivery_id], verdict.echo, outcome.error)

        act = act_of(token, verdict.change)
        Awaited(self._client.connection, done).ask(
            lambda reply: settling.settle_one(
                self._client.broker, self._entity, token, act, reply, self.session
            )
        )

    def flush(self) -> None:
        """Complete what was accepted in this burst."""
        completing, self._completing = self._completing, []
        if completing:
            self._complete(completing)

    def _complete(self, chosen: list[tuple[int | None, bytes]]) -> None:
        ids = [one for one, _ in chosen if one is not None]
        tokens = [token for _, token in chosen]
        reply = Awaited(self._client.connection, partial(self._completed, ids))
        try:
            settling.complete_all(self._client.broker, self._entity, tokens, reply, self.session)
        except OnibusError as error:
            if len(chosen) == 1:
                reply.set_exception(error)
            else:
                reply.let_go()
                # All or none: those whose lock was lost must not take the others with them.
                for one in chosen:
                    self._complete([one])

    def _completed(self, ids: list[int], outcome: Outcome) -> None:
        self._confirm(ids, _COMPLETE.echo, outcome.error)

    def _in_transaction(self, taken: list[tuple[int, bytes]], state: Any, settled: bool) -> None:
        fields = state.value if isinstance(state.value, list) else []
        verdict = verdict_of(fields[1] if len(fields) > 1 else None)
        if verdict.change.verb == RELEASE:
            raise InvalidArgument("a transaction can only complete, abandon, defer or dead-letter")
        # Properties are counted roughly: they are few, and checked for themselves.
        size = len(taken) * len(repr(verdict.change.properties or ""))
        transaction, echo = self._client.transactions.of(state, verdict.echo, size)
        tokens = [token for _, token in taken]
        transaction.settle(self._entity, tokens, verdict.change, self.session)
        if not settled:
            self._confirm([one for one, _ in taken], echo, None)

    def _refuse(self, ids: list[int], error: BaseException) -> None:
        self._confirm(ids, b"", error)

    def _confirm(self, ids: list[int], echo: bytes, error: BaseException | None) -> None:
        if ids and self._link.is_open:
            state = echo if error is None else rejected(error, self._link)
            self._link.session.settled_by_us(ids, state)
