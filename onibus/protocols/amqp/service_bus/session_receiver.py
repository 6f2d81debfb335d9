"""Receivers of one session: a named one, or the next that is free (B4, B9).

The server responds to the attach when the receiver holds the message session, with its id in the
filter and the end of its lock among the properties. Closing the link releases the session.

A client asks for a non-exclusive session by a second filter instead of the first. Its value is a
described list of the session's id and of a lock token, each of which may be null. The response has
the same filter with the id and the lock token that were granted. Another receiver that attaches
with both takes the session over; the first one sees that its session lock was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from onibus.core.commands import Command, HeldSession, Query, ReleaseSession
from onibus.core.errors import InvalidArgument, OnibusError, SessionLockLost
from onibus.core.inspection import AcceptedSession, NonExclusive
from onibus.directory.entity import Entity, Waiter
from onibus.gateway import receiving, settling
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import Described
from onibus.protocols.amqp.link import Link, LinkState, OutgoingLink
from onibus.protocols.amqp.performatives import Attach
from onibus.protocols.amqp.service_bus.conditions import condition_of
from onibus.protocols.amqp.service_bus.incoming import string_of
from onibus.protocols.amqp.service_bus.places import Place
from onibus.protocols.amqp.service_bus.receiver import TURN_BYTES_MAX, ReceiverNode
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

T = TypeVar("T")

SESSION_FILTER = "com.microsoft:session-filter"
NON_EXCLUSIVE_FILTER = "com.microsoft:non-exclusive-session-filter"
#: How the value of the second filter is described, by its number or by its name.
_NON_EXCLUSIVE = 0x137000000E
_NON_EXCLUSIVE_NAME = NON_EXCLUSIVE_FILTER + ":list"
_LOCKED_UNTIL = "com.microsoft:locked-until-utc"
_TIMEOUT = "com.microsoft:timeout"
#: How long a client that does not say so waits for a session.
WAIT_MS = 60_000
#: How long before its timeout a client gets a response, at the earliest.
_ANSWERED_BEFORE_MS = 1_000
_FILTER_PLACE = 7
#: .NET counts in units of 100 nanoseconds, from the year 1.
_TICKS_A_MS = 10_000
_TICKS_OF_1970 = 621_355_968_000_000_000


class WantedSession(NamedTuple):
    """The session that an attach asks for."""

    #: None for the next one that is free
    session_id: str | None
    #: None for an exclusive lock
    sharing: NonExclusive | None = None


def session_filter(attach: Attach) -> WantedSession | None:
    """Return the session that an attach requests; None if it requests none."""
    fields = say.terminus_list(attach.source)
    found = fields[_FILTER_PLACE] if len(fields) > _FILTER_PLACE else None
    if not isinstance(found, dict):
        return None
    if NON_EXCLUSIVE_FILTER in found:
        if SESSION_FILTER in found:
            raise InvalidArgument(f"{SESSION_FILTER} and {NON_EXCLUSIVE_FILTER} exclude each other")
        return _non_exclusive(found[NON_EXCLUSIVE_FILTER])
    if SESSION_FILTER not in found:
        return None
    wanted = found[SESSION_FILTER]
    if isinstance(wanted, Described):
        wanted = wanted.value
    return WantedSession(None if wanted is None else string_of("a session id", wanted))


def _non_exclusive(given: Any) -> WantedSession:
    """Return what a non-exclusive filter asks for: a list of session id and lock token."""
    fields = given.value if isinstance(given, Described) else None
    known = isinstance(given, Described) and given.descriptor in (
        _NON_EXCLUSIVE,
        _NON_EXCLUSIVE_NAME,
    )
    if not known or not isinstance(fields, list):
        raise InvalidArgument(f"{NON_EXCLUSIVE_FILTER} must be a list described as its own")
    session_id, token = (*fields, None, None)[:2]
    if token is not None and not isinstance(token, UUID):
        raise InvalidArgument("the lock token of a non-exclusive session must be a UUID")
    return WantedSession(
        None if session_id is None else string_of("a session id", session_id),
        NonExclusive(None if token is None else token.bytes),
    )


def granted_filter(accepted: AcceptedSession) -> bytes:
    """Return the filter that names the granted session."""
    session_id = to.string(accepted.session_id)
    if accepted.takeover is None:
        return to.fields({SESSION_FILTER: session_id})
    fields = to.list_([session_id, to.uuid(UUID(bytes=accepted.takeover))])
    return to.fields({NON_EXCLUSIVE_FILTER: to.described(_NON_EXCLUSIVE, fields)})


def ticks(milliseconds: int) -> int:
    return milliseconds * _TICKS_A_MS + _TICKS_OF_1970


class SessionReceiverNode(ReceiverNode):
    """A session, for the receiver that holds it."""

    def __init__(self, client: Client, link: OutgoingLink, place: Place) -> None:
        super().__init__(client, link, place)
        self._entity: Entity
        self._partition: ShardPartition
        self.accepted: AcceptedSession | None = None
        self._accepting: Waiter | None = None
        link.node = self

    def accept(self, wanted: WantedSession) -> None:
        """Wait for the message session, then respond to the attach."""
        wait_ms = (self.link.attach.properties or {}).get(_TIMEOUT)
        if type(wait_ms) is not int or wait_ms < 0:
            wait_ms = WAIT_MS
        # The client waits for just as long: it gets its response before it times out.
        wait_ms -= min(wait_ms // 20, _ANSWERED_BEFORE_MS)
        self._accepting = receiving.accept(
            self.client.broker,
            self.place.entity,
            wanted.session_id,
            self.link.session.connection.container_id,
            wait_ms,
            KeptReply(self._held),
            wanted.sharing,
        )

    def _held(self, kept: KeptReply) -> None:
        self._accepting = None
        link = self.link
        if kept.error is not None:
            if link.state is LinkState.PENDING:
                link.node = None
                self.client.forget(link)
                condition, description, _ = condition_of(kept.error, link)
                link.refuse(condition, description)
            return
        self._entity, self._partition, self.accepted = kept.value
        assert self.accepted is not None
        if link.state is not LinkState.PENDING:
            self._give_back()
            return
        link.source = say.source(link.attach.source, granted_filter(self.accepted))
        self._settling.session = self.held
        link.properties[_LOCKED_UNTIL] = to.long(ticks(self.accepted.locked_until_ms))
        self.client.sessions[self.place.entity, self.accepted.session_id] = self
        link.answer(self, 0)

    @property
    def held(self) -> HeldSession:
        """The session, and the token that proves who holds it."""
        assert self.accepted is not None
        return HeldSession(self.accepted.session_id, self.accepted.token)

    @property
    def number(self) -> int:
        """The number by which commands name the entity's messages."""
        return self._entity.number

    def ask(self, limit: int, wait_ms: int, reply: KeptReply) -> Waiter | None:
        assert self.accepted is not None
        return receiving.receive_session(
            self.client.broker,
            self._entity,
            self._partition,
            self.held,
            limit,
            wait_ms,
            reply,
            take=self._take,
            bytes_max=TURN_BYTES_MAX,
        )

    def detached(self, link: Link) -> None:
        super().detached(link)
        waiter, self._accepting = self._accepting, None
        if waiter is not None:
            receiving.stop_waiting(self.client.broker, waiter)
        if self.accepted is not None:
            self._give_back()

    def on_session(self, command: Command[Any], reply: KeptReply) -> None:
        """Do something to the session that is held."""
        settling.on_session(self.client.broker, self._entity, self._partition, command, reply)

    def look(self, question: Query[T]) -> T:
        """Return something about the session that is held."""
        return self.client.broker.use(self._entity, self._partition, question)

    def _give_back(self) -> None:
        assert self.accepted is not None
        key = (self.place.entity, self.accepted.session_id)
        if self.client.sessions.get(key) is self:
            del self.client.sessions[key]
        if self.client.broker.closed:
            return
        try:
            self.on_session(ReleaseSession(self.number, self.held), KeptReply())
        except (SessionLockLost, OnibusError):
            # Its lock expired before, or its partition is down: nothing to release.
            return
        finally:
            self.accepted = None
