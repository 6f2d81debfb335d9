"""A port for plain text, TLS or both, distinguished by the first byte that a client sends.

A TLS connection begins with a handshake record, whose first byte is 0x16. No other protocol of this
server does. The listener peeks at the byte (MSG_PEEK), so that asyncio takes over an untouched
connection. A silent connection has a deadline, and counts towards the limit of connections. At the
limit the listener accepts nothing.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial

from onibus.operation.peers import Peer, Peers

_TLS_HANDSHAKE = b"\x16"
#: New connections accepted before other connections run.
_ACCEPT_MAX = 100
#: Pause of accepting when the process has no file handles left.
_REST_SECONDS = 0.5
_NO_HANDLES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Factory = Callable[[Peer], asyncio.Protocol]
#: What TLS needs, or how to make it for the first client that speaks TLS.
Tls = ssl.SSLContext | Callable[[], ssl.SSLContext]


class Listener:
    """Sockets that accept connections, and give each its own protocol."""

    def __init__(
        self,
        factory: Factory,
        *,
        tls: Tls | None = None,
        plain: Factory | None = None,
        peers: Peers | None = None,
        silent_seconds: float = 10.0,
    ) -> None:
        self._factory = factory
        self._tls = tls
        #: the peers of all listeners
        self._peers = peers or Peers()
        #: the protocol for plain text on a port with TLS; by default the same one
        self._plain = plain or factory
        self._silent_seconds = silent_seconds
        self._loop: asyncio.AbstractEventLoop
        self._sockets: list[socket.socket] = []
        #: connections that have not sent anything yet
        self._silent: dict[socket.socket, tuple[Peer, asyncio.TimerHandle]] = {}
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port, chosen by the system if 0 was configured."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int, backlog: int = 4_096) -> None:
        """Listen on all addresses of a host."""
        self._loop = asyncio.get_running_loop()
        infos = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, protocol, _, address in dict.fromkeys(infos):
                self._sockets.append(_bound(family, protocol, address, backlog))
        except OSError:
            self.close()
            raise
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Stop accepting connections, and close those that have not sent anything."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for sock in list(self._silent):
            self._close_silent(sock)
        for task in self._opening:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPT_MAX):
            if not self._peers.has_room:
                self._loop.remove_reader(listening)
                self._peers.when_room(partial(self._resume, listening))
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_HANDLES:
                    raise
                self._loop.remove_reader(listening)
                self._loop.call_later(_REST_SECONDS, self._resume, listening)
                return
            sock.setblocking(False)
            peer = self._peers.join(address)
            if self._tls is None:
                self._open(sock, peer, self._factory, None)
            else:
                late = self._loop.call_later(self._silent_seconds, self._close_silent, sock)
                self._silent[sock] = peer, late
                peer.abort = partial(self._close_silent, sock)
                self._loop.add_reader(sock, self._look, sock)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _look(self, sock: socket.socket) -> None:
        """Choose the protocol of a client that has sent its first byte."""
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        peer = self._forget(sock)
        if not first:
            sock.close()
            peer.leave()
        elif first == _TLS_HANDSHAKE:
            tls = self._tls
            self._open(sock, peer, self._factory, tls() if callable(tls) else tls)
        else:
            self._open(sock, peer, self._plain, None)

    def _forget(self, sock: socket.socket) -> Peer:
        self._loop.remove_reader(sock)
        peer, late = self._silent.pop(sock)
        late.cancel()
        return peer

    def _close_silent(self, sock: socket.socket) -> None:
        peer = self._forget(sock)
        sock.close()
        peer.leave()

    def _open(
        self, sock: socket.socket, peer: Peer, factory: Factory, tls: ssl.SSLContext | None
    ) -> None:
        protocol = factory(peer)
        task = self._loop.create_task(self._hand_over(sock, protocol, tls))
        peer.abort = partial(_cancel, task)
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, sock, protocol))

    async def _hand_over(
        self, sock: socket.socket, protocol: asyncio.Protocol, tls: ssl.SSLContext | None
    ) -> None:
        timeout = None if tls is None else self._silent_seconds
        await self._loop.connect_accepted_socket(
            lambda: protocol, sock, ssl=tls, ssl_handshake_timeout=timeout
        )

    def _opened(
        self, sock: socket.socket, protocol: asyncio.Protocol, task: asyncio.Task[None]
    ) -> None:
        """Release a connection whose handshake failed or was cancelled.

        Asyncio does not call its protocol then. A task that is cancelled before its first step does
        not run at all, so it cannot do this itself.
        """
        self._opening.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            sock.close()
            protocol.connection_lost(None)
        if error is not None and not isinstance(error, OSError | EOFError):
            self._loop.call_exception_handler({"message": "cannot accept", "exception": error})


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _bound(family: int, protocol: int, address: object, backlog: int) -> socket.socket:
    """Return a socket that listens on an address.

    Its connections inherit the protocol, which tells asyncio to send small responses at once.
    """
    sock = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)  # type: ignore[arg-type]
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock
