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


class Waiting:
    """A delivery that was sent and is not cut into frames yet, or only in part."""

    __slots__ = ("_at", "_part", "_whole", "flow", "link", "payload")

    def __init__(
        self,
        link: OutgoingLink,
        part: bytes,
        whole: bytes,
        payload: bytes,
        flow: tuple[int, int, int, bool] | None = None,
    ) -> None:
        #: instead of a delivery, the state of the link after those before it
        self.flow = flow
        self.link = link
        self.payload = payload
        #: the performative of its last frame, and of those before
        self._whole = whole
        self._part = part
        self._at = 0

    def next(self, body_max: int) -> bytes:
        """Return the body of its next frame."""
        at, payload, room = self._at, self.payload, body_max - len(self._whole)
        self._at = end = min(at + room, len(payload))
        return (self._whole if end == len(payload) else self._part) + payload[at:end]

    @property
    def is_over(self) -> bool:
        """Return whether all of it is cut."""
        return self._at >= len(self.payload)


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
        #: deliveries that wait for the peer's window, or for their turn to be cut into frames
        self._waiting: deque[Waiting] = deque()
        #: links that have ended, and whose deliveries are forgotten at the end of the burst
        self._dropped: set[Link] = set()
        #: outcomes of the peer's deliveries, not yet sent: state → ids
        self._outcomes: dict[bytes, list[int]] = {}
        self.say(say.begin(channel, 0, WINDOW, HANDLE_MAX))

    # Out

    def say(self, performative: bytes) -> None:
        self.connection.write(frame(self.channel, performative))

    def flow(self, link: tuple[int, int, int, bool] | None = None) -> None:
        self.say(say.flow(self._next_incoming_id, WINDOW, self._next_outgoing_id, link))

    def flow_of(self, link: OutgoingLink, drain: bool) -> None:
        """Send the state of a link to a receiver, behind its deliveries."""
        told = (link.handle, link.delivery_count, link.credit, drain)
        if self._waiting:
            self._waiting.append(Waiting(link, b"", b"", b"", told))
        else:
            self.flow(told)

    @property
    def room(self) -> int:
        """How many more frames the peer takes just now."""
        return 0 if self.connection.waits_much else max(self._window, 0)

    @property
    def is_cutting(self) -> bool:
        """Return whether deliveries wait that were sent already."""
        return bool(self._waiting)

    def send(self, link: OutgoingLink, payload: bytes, tag: bytes, token: bytes | None) -> None:
        """Send a delivery, in as many frames as it needs."""
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & SERIAL
        settled = token is None
        if token is not None:
            self.unsettled[delivery_id] = (link, token)
        whole = say.transfer(link.handle, delivery_id, tag, settled, False)
        room = self.connection.peer_frame_max - HEADER_BYTES - len(whole)
        if len(payload) <= room and not self._waiting and self._window > 0:
            self._count_out(1)
            self.connection.write(frame(self.channel, whole + payload))
            return
        part = say.transfer(link.handle, delivery_id, tag, settled, True)
        self._waiting.append(Waiting(link, part, whole, payload))
        self.connection.hold_waiting(len(payload))
        if self._window > 0:
            self.connection.cut_later(self)

    def send_all(self, link: OutgoingLink, deliveries: list[tuple[bytes, bytes, bytes]]) -> None:
        """Send deliveries that the peer settles: payload, tag of 16 bytes and token of each."""
        frame_max, room = self.connection.peer_frame_max, 0 if self._waiting else self.room
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

    def cut(self, count: int, size: int) -> int:
        """Write waiting deliveries, up to about that many frames and bytes; return the frames."""
        frame_max = self.connection.peer_frame_max - HEADER_BYTES
        done = 0
        while self.may_cut and done < count and size > 0:
            one = self._waiting[0]
            done += 1
            if one.flow is not None:
                self._waiting.popleft()
                self.flow(one.flow)
                continue
            body = one.next(frame_max)
            self._count_out(1)
            self.connection.write(frame(self.channel, body))
            size -= len(body)
            if one.is_over:
                self._waiting.popleft()
                self.connection.hold_waiting(-len(one.payload))
        return done

    @property
    def may_cut(self) -> bool:
        """Return whether the peer takes more frames of waiting deliveries."""
        waiting = self._waiting
        return bool(waiting) and (self._window > 0 or waiting[0].flow is not None)

    def _count_out(self, frames: int) -> None:
        self._window -= frames
        self._next_outgoing_id = (self._next_outgoing_id + frames) & SERIAL

    def settle(self, ids: list[int], state: bytes) -> None:
        """Record the outcome of the peer's deliveries."""
        if not self._outcomes and not self._dropped:
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
        self._forget_dropped()
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
        if self.may_cut:
            self.connection.cut_later(self)
        if flow.handle is None:
            self.tell_room()
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
            self.tell_room()

    def tell_room(self) -> None:
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
        if not self._dropped and not self._outcomes:
            self.connection.later(self)
        self._dropped.add(link)
        if self._waiting:
            self._drop_waiting({link})

    def _drop_waiting(self, links: set[Link]) -> None:
        dropped = [one for one in self._waiting if one.link in links]
        self._waiting = deque([one for one in self._waiting if one.link not in links])
        self.connection.hold_waiting(-sum([len(one.payload) for one in dropped]))

    def _forget_dropped(self) -> None:
        """Forget the deliveries of ended links in one pass over all deliveries."""
        dropped, self._dropped = self._dropped, set()
        if dropped:
            for one in [one for one, (link, _) in self.unsettled.items() if link in dropped]:
                del self.unsettled[one]

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
        self._dropped.clear()
        self.connection.hold_waiting(-sum([len(one.payload) for one in self._waiting]))
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
