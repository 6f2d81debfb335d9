"""AMQP sessions: channels of a connection, with delivery ids, windows and links.

Delivery ids are consecutive in each direction of a session. The windows that we send are exact;
those that we get are treated leniently, since one client counts deliveries instead of frames.
Outcomes of sent deliveries are gathered and sent in ranges, once per burst.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.errors import (
    HANDLE_IN_USE,
    ILLEGAL_STATE,
    INVALID_FIELD,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    LinkFailed,
    SessionFailed,
)
from onibus.protocols.amqp.frames import frame
from onibus.protocols.amqp.link import SERIAL, IncomingLink, Link, LinkState, OutgoingLink
from onibus.protocols.amqp.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Transfer,
)
from onibus.protocols.amqp.runs import HEADER_BYTES, Run

if TYPE_CHECKING:
    from onibus.protocols.amqp.connection import Connection

#: As large as every client takes it: deliveries are bounded by credit and by bytes.
WINDOW = 2**31 - 1
#: Links of a session, and of a connection.
HANDLE_MAX = 255
LINKS_MAX = 5_000


class SessionState(Enum):
    """Where a session is in its life."""

    BEGUN = "begun"
    ENDING = "ended by us, the peer has not said so yet"
    ENDED = "gone"


SESSION_STATES = {
    (SessionState.BEGUN, "end"): SessionState.ENDING,
    (SessionState.BEGUN, "ended"): SessionState.ENDED,
    (SessionState.ENDING, "ended"): SessionState.ENDED,
}


class Session:
    """One session. Both sides use the channel that the peer has chosen."""

    def __init__(self, connection: Connection, channel: int, begin: Begin) -> None:
        self.connection = connection
        self.channel = channel
        self.state = SessionState.BEGUN
        self.links: dict[int, Link] = {}
        #: deliveries that the peer has to settle: id → (link, token)
        self.unsettled: dict[int, tuple[OutgoingLink, bytes]] = {}
        self._next_incoming_id = begin.next_outgoing_id
        self._next_outgoing_id = 0
        self._next_delivery_id = 0
        self._window = begin.incoming_window
        #: frames that wait for the peer's window
        self._waiting: deque[bytes] = deque()
        #: outcomes of the peer's deliveries, not yet sent: state → ids
        self._outcomes: dict[bytes, list[int]] = {}
        self.say(say.begin(channel, 0, WINDOW, HANDLE_MAX))

    # Out

    def say(self, performative: bytes) -> None:
        self.connection.write(frame(self.channel, performative))

    def flow(self, link: tuple[int, int, int, bool] | None = None) -> None:
        self.say(say.flow(self._next_incoming_id, WINDOW, self._next_outgoing_id, link))

    @property
    def room(self) -> int:
        """How many more frames the peer takes just now."""
        return 0 if self._waiting else self._window

    def send(self, link: OutgoingLink, payload: bytes, tag: bytes, token: bytes | None) -> None:
        """Send a delivery, in as many frames as it needs."""
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & SERIAL
        settled = token is None
        if token is not None:
            self.unsettled[delivery_id] = (link, token)
        whole = say.transfer(link.handle, delivery_id, tag, settled, False)
        room = self.connection.peer_frame_max - HEADER_BYTES - len(whole)
        if len(payload) <= room:
            self._send_frame(whole + payload)
            return
        part = say.transfer(link.handle, delivery_id, tag, settled, True)
        at = 0
        while at < len(payload):
            end = at + room
            self._send_frame((part if end < len(payload) else whole) + payload[at:end])
            at = end

    def send_all(self, link: OutgoingLink, deliveries: list[tuple[bytes, bytes, bytes]]) -> None:
        """Send deliveries that the peer settles: payload, tag of 16 bytes and token of each."""
        frame_max, room = self.connection.peer_frame_max, self.room
        delivery_id = self._next_delivery_id
        parts: list[bytes] = []
        sent = 0
        for payload, tag, token in deliveries:
            size = say.UNSETTLED_BYTES + len(payload)
            if size > frame_max or sent >= room:
                break
            self.unsettled[delivery_id] = (link, token)
            parts.append(say.unsettled_frame(size, self.channel, link.handle, delivery_id, tag))
            parts.append(payload)
            delivery_id = (delivery_id + 1) & SERIAL
            sent += 1
        self._next_delivery_id = delivery_id
        if sent:
            self._count_out(sent)
            self.connection.write(*parts)
        for payload, tag, token in deliveries[sent:]:
            self.send(link, payload, tag, token)

    def _send_frame(self, body: bytes) -> None:
        content = frame(self.channel, body)
        if self._waiting or self._window <= 0:
            self._waiting.append(content)
        else:
            self._count_out(1)
            self.connection.write(content)

    def _count_out(self, frames: int) -> None:
        self._window -= frames
        self._next_outgoing_id = (self._next_outgoing_id + frames) & SERIAL

    def settle(self, ids: list[int], state: bytes) -> None:
        """Record the outcome of the peer's deliveries."""
        if not self._outcomes:
            self.connection.later(self)
        known = self._outcomes.get(state)
        if known is None:
            self._outcomes[state] = ids
        else:
            known += ids

    def settled_by_us(self, ids: list[int], state: bytes) -> None:
        """Confirm how deliveries to the peer were settled."""
        for first, last in _ranges(ids):
            self.say(say.disposition(say.SENDER, first, last, state))

    def flush(self) -> None:
        """Send the outcomes of the peer's deliveries, in ranges."""
        outcomes, self._outcomes = self._outcomes, {}
        if self.state is not SessionState.BEGUN:
            return
        for state, ids in outcomes.items():
            for first, last in _ranges(ids):
                self.say(say.disposition(say.RECEIVER, first, last, state))

    def held(self, size: int) -> None:
        """Count bytes of an incomplete delivery that are kept, or released."""
        self.connection.hold(size)
        self.connection.unfinished_bytes += size

    # In

    def take_attach(self, attach: Attach) -> None:
        if attach.handle > HANDLE_MAX:
            raise SessionFailed(
                RESOURCE_LIMIT_EXCEEDED, f"handle out of range: at most {HANDLE_MAX}"
            )
        if attach.handle in self.links:
            raise SessionFailed(HANDLE_IN_USE, f"handle {attach.handle} is in use")
        if self.connection.link_count >= LINKS_MAX:
            raise SessionFailed(
                RESOURCE_LIMIT_EXCEEDED, f"too many links: a connection has at most {LINKS_MAX}"
            )
        incoming = attach.role == say.SENDER
        if incoming and attach.initial_delivery_count is None:
            attach = attach._replace(initial_delivery_count=0)
        link: Link = (IncomingLink if incoming else OutgoingLink)(self, attach)
        self.links[attach.handle] = link
        self.connection.link_count += 1
        self.connection.application.attach(link)

    def take_flow(self, flow: Flow) -> None:
        was_full = self.room <= 0
        window = flow.incoming_window
        if flow.next_incoming_id is not None:
            left = (flow.next_incoming_id + window - self._next_outgoing_id) & SERIAL
            # A peer that counts otherwise is believed that it takes more.
            window = left if 0 < left < 1 << 31 else window
        self._window = window
        while self._waiting and self._window > 0:
            self._count_out(1)
            self.connection.write(self._waiting.popleft())
        if flow.handle is None:
            self._tell_room()
            if flow.echo:
                self.flow()
            return
        link = self._link(flow.handle)
        if isinstance(link, OutgoingLink):
            if link.state is not LinkState.DETACHING:
                link.flow(flow)
        elif flow.echo and link.is_open:
            assert isinstance(link, IncomingLink)
            link.grant()
        if was_full and self.room > 0:
            self._tell_room()

    def _tell_room(self) -> None:
        """Let all links send what waited for the window."""
        for link in list(self.links.values()):
            if isinstance(link, OutgoingLink) and link.node is not None:
                link.node.flowed(link)

    def take_run(self, run: Run) -> bool:
        """Take deliveries that came together; return whether they were taken."""
        link = self.links.get(run.handle)
        if not isinstance(link, IncomingLink) or self.state is not SessionState.BEGUN:
            return False
        return link.take_run(run)

    def count_in(self, frames: int) -> None:
        """Take note of frames of the peer that count towards its window."""
        self._next_incoming_id = (self._next_incoming_id + frames) & SERIAL

    def take_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self.count_in(1)
        link = self._link(transfer.handle)
        if not isinstance(link, IncomingLink):
            raise SessionFailed(ILLEGAL_STATE, "transfer on a link on which the client receives")
        try:
            link.transfer(transfer, payload)
        except LinkFailed as error:
            link.detach(error.condition, error.description)

    def take_disposition(self, disposition: Disposition) -> None:
        first = disposition.first
        last = first if disposition.last is None else disposition.last
        if disposition.role == say.SENDER:
            return  # the peer has settled its own deliveries, which we have settled already
        count = ((last - first) & SERIAL) + 1
        if count > 1 << 31:
            raise SessionFailed(INVALID_FIELD, "the last delivery is before the first")
        unsettled = self.unsettled
        if count == 1:
            ids = [first] if first in unsettled else []
        elif count > len(unsettled):
            ids = [one for one in unsettled if (one - first) & SERIAL < count]
        else:
            ids = [one & SERIAL for one in range(first, first + count) if one & SERIAL in unsettled]
        by_link: dict[OutgoingLink, list[int]] = {}
        owner: OutgoingLink | None = None
        chosen: list[int] = []
        for one in ids:
            # Nearly always all of them are of one link.
            if unsettled[one][0] is not owner:
                owner = unsettled[one][0]
                chosen = by_link.setdefault(owner, [])
            chosen.append(one)
        for link, chosen in by_link.items():
            if link.node is not None:
                link.node.settled(link, chosen, disposition.state, bool(disposition.settled))

    def take_detach(self, detach: Detach) -> None:
        link = self._link(detach.handle)
        answered = link.state is LinkState.DETACHING
        link.advance("detached")
        del self.links[detach.handle]
        self.connection.link_count -= 1
        if not answered:
            self.say(say.detach(detach.handle, None))
            self.dropped(link)
            link.forget()

    def dropped(self, link: Link) -> None:
        """Deliveries of a link are no more the peer's to settle."""
        if not isinstance(link, OutgoingLink) or not link.delivery_count:
            # It had none: not to go through those of all others.
            return
        for delivery_id in [one for one, (owner, _) in self.unsettled.items() if owner is link]:
            del self.unsettled[delivery_id]

    def end(self, condition: str, description: str) -> None:
        """End the session for a reason."""
        self.flush()
        self.advance("end")
        self.say(say.end(say.error(condition, description)))
        self.forget()

    def advance(self, event: str) -> None:
        following = SESSION_STATES.get((self.state, event))
        if following is None:
            raise SessionFailed(
                ILLEGAL_STATE, f"unexpected {event} on a session in state {self.state.value}"
            )
        self.state = following

    def forget(self) -> None:
        """Let all links go."""
        links, self.links = list(self.links.values()), {}
        self.connection.link_count -= len(links)
        self.unsettled.clear()
        self._outcomes.clear()
        self._waiting.clear()
        for link in links:
            link.state = LinkState.DETACHED
            link.forget()

    def _link(self, handle: int) -> Link:
        link = self.links.get(handle)
        if link is None:
            raise SessionFailed(UNATTACHED_HANDLE, f"no link is attached to handle {handle}")
        return link


def _ranges(ids: list[int]) -> list[tuple[int, int]]:
    """Return ids as runs of consecutive ones."""
    ids = sorted(set(ids))
    if ids[-1] - ids[0] + 1 == len(ids):
        return [(ids[0], ids[-1])]
    found: list[tuple[int, int]] = []
    first = last = ids[0]
    for one in ids[1:]:
        if one != last + 1:
            found.append((first, last))
            first = one
        last = one
    found.append((first, last))
    return found
