"""Peers of a server, over all listeners and protocols.

One limit counts the connections of all listeners, because they and the stores share the files that
the process may open. A peer is a stranger until it authenticates. At the limit the server closes a
stranger to accept the next connection: the oldest one of the address with the most strangers. If
there are no strangers, the next connection is rejected. One bound limits the bytes that the server
keeps for all strangers.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from itertools import islice
from typing import Any

from onibus.core.errors import Unauthorized
from onibus.security.attempts import FailedAttempts
from onibus.security.keys import Doorkeeper
from onibus.security.rights import Granted

#: Connections above the limit: those being closed to make room, and those being rejected. Beyond
#: them the listeners accept nothing, and connections wait in the backlog.
MARGIN = 32
#: Strangers that are compared to find the one to close.
_COMPARED = 64


class Peer:
    """One connection, from accept to close."""

    __slots__ = (
        *("_peers", "abort", "address", "held_bytes"),
        *("has_left", "is_known", "is_rejected", "is_stranger"),
    )

    def __init__(self, peers: Peers | None, address: str) -> None:
        #: None once it has left
        self._peers = peers
        self.address = address
        #: its connection has ended, or it has closed its side
        self.has_left = False
        #: its last credentials were good
        self.is_known = False
        #: it has not authenticated, and is not being closed
        self.is_stranger = True
        #: the limit was reached: it only gets an error
        self.is_rejected = False
        #: bytes that the server keeps for it while it is a stranger
        self.held_bytes = 0
        #: closes the connection at once; set by the listener, then by the protocol
        self.abort: Callable[[], None] = _nothing

    def know(self) -> None:
        """Record that the peer has authenticated."""
        if not self.is_known:
            self.is_known = True
            if self._peers is not None:
                self._peers.forget_stranger(self)

    def hold(self, size: int) -> None:
        """Record how many bytes the server keeps for a stranger."""
        if self.is_stranger and size != self.held_bytes and self._peers is not None:
            self._peers.hold(self, size)

    def authenticate(self, keys: Doorkeeper, credentials: str, now: float) -> Granted:
        """Return what credentials allow; count wrong ones against the peer's address."""
        if not self.is_known and not keys.remembers(credentials, now):
            self.check_attempts()
        try:
            granted = keys.check(credentials, now)
        except Unauthorized:
            self.failed()
            raise
        self.know()
        return granted

    def check_attempts(self) -> None:
        """Reject credentials unchecked if too many from this address were wrong.

        A connection that has authenticated is not affected by other clients at its address.
        """
        if not self.is_known and self._peers is not None:
            self._peers.attempts.check(self.address)

    def failed(self) -> None:
        """Record wrong credentials."""
        self.is_known = False
        if self._peers is not None:
            self._peers.attempts.failed(self.address)

    def leave(self) -> None:
        """Record the end of the connection."""
        peers, self._peers = self._peers, None
        self.has_left = True
        self.abort = _nothing
        if peers is not None:
            peers.left(self)


class Bodies:
    """The bytes that all connections hold: bodies in progress and unread responses."""

    __slots__ = ("held_bytes", "most")

    def __init__(self, most: int = 1 << 30) -> None:
        self.held_bytes = 0
        self.most = most

    @property
    def crowded(self) -> bool:
        """Return whether the connections hold more than they may."""
        return self.held_bytes > self.most


class Peers:
    """All connections of a server."""

    def __init__(
        self,
        connections_max: int = 20_000,
        strangers_bytes_max: int = 64 << 20,
        attempts: FailedAttempts | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        self.connections_max = connections_max
        self.bodies = bodies or Bodies()
        self.attempts = attempts or FailedAttempts()
        self._strangers_bytes_max = strangers_bytes_max
        #: connections that have not ended, including those being closed
        self.count = 0
        self._admitted: set[Peer] = set()
        self._rejected: dict[Peer, None] = {}
        #: bytes that the server keeps for all strangers
        self.held_bytes = 0
        #: strangers closed to make room for others
        self.evicted = 0
        self._strangers = Crowd()
        #: strangers that the server keeps bytes for, in the order in which they began
        self._holding: dict[Peer, None] = {}
        #: bytes that the server keeps for strangers, by address
        self._held_at: dict[str, int] = {}
        #: callbacks of listeners that wait for room
        self._waiting: list[Callable[[], None]] = []

    @property
    def has_room(self) -> bool:
        """Return whether another connection may be accepted."""
        return self.count < self.connections_max + MARGIN

    def when_room(self, resume: Callable[[], None]) -> None:
        """Call back once when another connection may be accepted."""
        self._waiting.append(resume)

    def join(self, address: Any = None) -> Peer:
        """Record a new connection; at the limit, close a stranger or reject the new one."""
        peer = Peer(self, key_of(address))
        self.count += 1
        if len(self._admitted) >= self.connections_max:
            stranger = self._strangers.first()
            if stranger is None:
                self._reject(peer)
                return peer
            self._evict(stranger)
        self._admitted.add(peer)
        self._strangers.add(peer)
        return peer

    def _reject(self, peer: Peer) -> None:
        """Reject a connection, and close the oldest rejected one if there are many."""
        peer.is_rejected = True
        self._rejected[peer] = None
        if len(self._rejected) > MARGIN // 2:
            self._evict(next(iter(self._rejected)))

    def hold(self, peer: Peer, size: int) -> None:
        """Record the bytes kept for a stranger; close strangers until the total fits."""
        self._count_held(peer, size)
        if size:
            self._holding[peer] = None
        else:
            self._holding.pop(peer, None)
        while self.held_bytes > self._strangers_bytes_max:
            self._evict(self._holds_most())

    def _count_held(self, peer: Peer, size: int) -> None:
        more = size - peer.held_bytes
        if more:
            self.held_bytes += more
            peer.held_bytes = size
            held = self._held_at.get(peer.address, 0) + more
            if held:
                self._held_at[peer.address] = held
            else:
                del self._held_at[peer.address]

    def _holds_most(self) -> Peer:
        """Return the oldest holder of the address with the most bytes.

        Compare only the oldest holders: there may be very many.
        """
        longest = islice(self._holding, _COMPARED)
        return max(longest, key=lambda peer: self._held_at[peer.address])

    def _evict(self, peer: Peer) -> None:
        self.evicted += 1
        self._forget(peer)
        peer.abort()

    def _forget(self, peer: Peer) -> None:
        self._admitted.discard(peer)
        self._rejected.pop(peer, None)
        self.forget_stranger(peer)

    def forget_stranger(self, peer: Peer) -> None:
        """Stop counting a peer as a stranger."""
        peer.is_stranger = False
        self._strangers.remove(peer)
        self._holding.pop(peer, None)
        self._count_held(peer, 0)

    def left(self, peer: Peer) -> None:
        """Record the end of a connection, and resume waiting listeners."""
        self._forget(peer)
        self.count -= 1
        if self._waiting and self.has_room:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                resume()


class Crowd:
    """Strangers by address, with the largest group at hand."""

    def __init__(self) -> None:
        self._by_address: dict[str, dict[Peer, None]] = {}
        #: addresses by their number of strangers
        self._by_size: dict[int, dict[str, None]] = {}
        self._largest = 0

    def add(self, peer: Peer) -> None:
        """Add a stranger."""
        there = self._by_address.setdefault(peer.address, {})
        there[peer] = None
        self._resize(peer.address, len(there) - 1, len(there))

    def remove(self, peer: Peer) -> None:
        """Remove a stranger, if it is one."""
        there = self._by_address.get(peer.address)
        if there is None or peer not in there:
            return
        del there[peer]
        self._resize(peer.address, len(there) + 1, len(there))
        if not there:
            del self._by_address[peer.address]

    def first(self) -> Peer | None:
        """Return the oldest stranger of the address with the most."""
        if not self._largest:
            return None
        address = next(iter(self._by_size[self._largest]))
        return next(iter(self._by_address[address]))

    def _resize(self, address: str, before: int, after: int) -> None:
        if before:
            del self._by_size[before][address]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[address] = None
        # A size changes by one, so the largest does too.
        if after > self._largest or self._largest not in self._by_size:
            self._largest = after


def key_of(address: Any) -> str:
    """Return the key of a host: its IPv4 address, or the first 64 bits of its IPv6 address.

    One host usually owns a whole IPv6 network of 64 bits.
    """
    if not isinstance(address, tuple) or not address:
        return ""
    try:
        found = ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return str(address[0])
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return found.exploded[:19]


def _nothing() -> None:
    """Close nothing: the connection has no protocol yet, or has ended."""


#: The peer of calls inside this process, which need no credentials.
LOCAL = Peer(None, "")
LOCAL.is_known, LOCAL.is_stranger = True, False
