"""What a connection holds in memory: bodies that come or are worked on, answers nobody has read."""

from __future__ import annotations

from onibus.operation.peers import Bodies


class Held:
    """The bytes that one connection holds, of those that all together may."""

    __slots__ = ("_all", "_own", "_unread")

    def __init__(self, bodies: Bodies) -> None:
        self._all = bodies
        self._own = 0
        self._unread = 0

    @property
    def crowded(self) -> bool:
        """All connections together hold more than they may: nothing more is taken."""
        return self._all.crowded

    def take(self, size: int) -> bool:
        """Hold so many bytes more, unless nothing more is taken; tell whether they are held."""
        bodies = self._all
        if bodies.held_bytes > bodies.most:
            return False
        bodies.held_bytes += size
        self._own += size
        return True

    def add(self, size: int) -> None:
        """So many bytes more are held, or less."""
        self._own += size
        self._all.held_bytes += size

    def wait_for_reader(self, size: int) -> None:
        """So many bytes of answers wait for the client to read them."""
        self.add(size - self._unread)
        self._unread = size

    def let_go(self, kept: int = 0) -> None:
        """Release all bytes but `kept`: the connection has ended."""
        self.add(kept - self._own)
        self._unread = 0
