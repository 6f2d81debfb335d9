"""Memory held by a connection: bodies being received or processed, and unread responses."""

from __future__ import annotations

from onibus.operation.peers import Bodies


class HeldBytes:
    """The bytes that one connection holds, part of the total of all connections."""

    __slots__ = ("_all", "_own", "_unread")

    def __init__(self, bodies: Bodies) -> None:
        self._all = bodies
        self._own = 0
        self._unread = 0

    @property
    def crowded(self) -> bool:
        """Whether all connections together hold more than they may."""
        return self._all.crowded

    def take(self, size: int) -> bool:
        """Hold more bytes, unless the limit is reached; return whether they are held."""
        bodies = self._all
        if bodies.held_bytes > bodies.most:
            return False
        bodies.held_bytes += size
        self._own += size
        return True

    def add(self, size: int) -> None:
        """Change the number of held bytes."""
        self._own += size
        self._all.held_bytes += size

    def wait_for_reader(self, size: int) -> None:
        """Record the bytes of responses that the client has yet to read."""
        self.add(size - self._unread)
        self._unread = size

    def let_go(self, kept: int = 0) -> None:
        """Release all bytes but `kept`: the connection has ended."""
        self.add(kept - self._own)
        self._unread = 0
