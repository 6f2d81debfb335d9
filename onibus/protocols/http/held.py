"""What a connection holds in memory: bodies that come or are worked on, answers nobody has read."""

from __future__ import annotations

from onibus.operation.traffic import Traffic


class Held:
    """The bytes that one connection holds, of those that all together may."""

    __slots__ = ("_most", "_own", "_traffic", "_unread")

    def __init__(self, traffic: Traffic, most: int) -> None:
        self._traffic = traffic
        self._most = most
        self._own = 0
        self._unread = 0

    @property
    def crowded(self) -> bool:
        """All connections together hold more than they may: nothing more is taken."""
        return self._traffic.held_bytes > self._most

    def take(self, size: int) -> bool:
        """Hold so many bytes more, unless nothing more is taken; tell whether they are held."""
        traffic = self._traffic
        if traffic.held_bytes > self._most:
            return False
        traffic.held_bytes += size
        self._own += size
        return True

    def add(self, size: int) -> None:
        """So many bytes more are held, or less."""
        self._own += size
        self._traffic.held_bytes += size

    def wait_for_reader(self, size: int) -> None:
        """So many bytes of answers wait for the client to read them."""
        self.add(size - self._unread)
        self._unread = size

    def let_go(self) -> None:
        """The connection has ended."""
        self.add(-self._own)
        self._unread = 0
