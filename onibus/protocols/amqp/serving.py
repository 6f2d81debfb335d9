"""AMQP connections on asyncio: bytes in, bytes out, one timer each.

The frames of a burst are written once. The server sends no more to a client that does not read, and
does not read from one whose deliveries are not stored yet. No client blocks the others: the server
reads from each for a limited time in each turn of the loop, and continues in the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from onibus.bus import Bus
from onibus.operation.peers import Peer, Peers
from onibus.operation.traffic import Traffic
from onibus.protocols.amqp.connection import Connection, State
from onibus.protocols.amqp.errors import CONNECTION_FORCED
from onibus.protocols.amqp.frames import TLS_HEADER
from onibus.protocols.amqp.service_bus.client import Client
from onibus.protocols.ended import ENDED
from onibus.protocols.service_bus_profile import RELAXED, Profile
from onibus.security.keys import Doorkeeper

#: Bytes of deliveries that one client may have under way.
HELD_BYTES_MAX = 64 << 20
#: The server sends no more to a client with this many unread bytes.
_UNREAD_BYTES_MAX = 1 << 20
#: How long the server reads from one client before others get their turn. Loops read as long as
#: data is available, a megabyte and more, and processing it can take longer than sending it.
_TURN_S = 0.01
#: The time for a client to read the last bytes.
LINGER_S = 5.0
#: The time for clients to disconnect when the server stops. Some read nothing until they are used
#: again, as the synchronous Python client: the server does not wait for them.
_GOODBYE_S = 1.0


class AmqpConnections:
    """All AMQP connections of a server."""

    def __init__(
        self,
        bus: Bus,
        keys: Doorkeeper | None,
        *,
        peers: Peers | None = None,
        profile: Profile = RELAXED,
    ) -> None:
        self.bus = bus
        self.keys = keys
        self.profile = profile
        #: the peers of all listeners
        self.peers = peers or Peers()
        self.traffic = Traffic()
        self.open: set[AmqpProtocol] = self.traffic.open
        self.closing = False
        if keys is not None:
            keys.watch(self._keys_replaced)

    def __call__(self, peer: Peer | None = None) -> AmqpProtocol:
        return AmqpProtocol(self, self.peers.join() if peer is None else peer)

    def _keys_replaced(self) -> None:
        for one in list(self.open):
            one.check_keys()

    async def drain(self, seconds: float) -> None:
        """Store pending sends, tell clients to disconnect, and wait until they have."""
        self.closing = True
        deadline = asyncio.get_running_loop().time() + seconds
        for one in self.open:
            one.stop_reading()
        await self._until(deadline, lambda: not any(one.is_storing for one in self.open))
        for one in list(self.open):
            one.say_goodbye()
        await self._until(deadline, lambda: not any(one.is_unsent for one in self.open))
        goodbyes = asyncio.get_running_loop().time() + _GOODBYE_S
        await self._until(min(deadline, goodbyes), lambda: not self.open)
        self.abort()

    async def _until(self, deadline: float, is_so: Callable[[], bool]) -> None:
        while not is_so() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    def abort(self) -> None:
        """Close every connection at once."""
        for one in list(self.open):
            one.abort()


class AmqpProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, connections: AmqpConnections, peer: Peer) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._peer = peer
        self._transport: asyncio.Transport = ENDED
        self._connection = Connection("onibus", self._loop.time())
        self._connection.bodies = connections.peers.bodies
        self._client = Client(connections.bus, connections.keys, self._connection, peer)
        self._client.profile = connections.profile
        self._connection.application = self._client
        self._connection.on_output = self._output
        self._writing = False
        self._feeding = False
        self._paused = False
        self._ending = False
        #: closed by us, or gone
        self._over = False
        #: received bytes that are not passed on yet, if a WebSocket carries the connection
        self._ahead_bytes = 0
        #: when reading in this turn of the loop began
        self._turn_begun: float | None = None
        #: when the timer fires
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def receivers(self, entity: str) -> Iterator[tuple[Any, ...]]:
        """Yield a description of each link that receives from an entity, for operators."""
        return self._client.receivers(entity)

    # asyncio's words

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNREAD_BYTES_MAX)
        self._peer.abort = self.abort
        connections = self._connections
        if connections.closing or self._peer.is_rejected:
            connections.traffic.turned_away += 1
            self._transport.abort()
            return
        connections.open.add(self)
        connections.traffic.opened += 1
        self._arm()

    def data_received(self, data: bytes) -> None:
        begun = self._begin_turn()
        self._feeding = True
        self._connection.feed(data, self._loop.time())
        self._feeding = False
        self._write()
        if self._peer.is_stranger:
            self._count_kept()
        long = time.monotonic() - begun > _TURN_S
        if long or self._connection.is_behind or self._stores_much(HELD_BYTES_MAX):
            self._pause()
        if self._wake_at() < self._due:
            # The client wants to hear of us more often, or its token is a short one.
            self._arm()

    def _count_kept(self) -> None:
        """Record the bytes kept for a stranger."""
        self._peer.hold(self._connection.kept_bytes + self._ahead_bytes + self._unread_bytes)

    def ahead(self, size: int) -> None:
        """Record the received bytes that the stream below has yet to pass on."""
        self._ahead_bytes = size
        if self._peer.is_stranger:
            self._count_kept()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._connection.is_full = True
        if self._peer.is_stranger:
            self._count_kept()
        # Responses to its requests would only fill our memory.
        self._pause()

    def resume_writing(self) -> None:
        self._connection.is_full = False
        self._connection.cut_on()
        self._catch_up()
        self._client.read()
        self._resume()

    def _begin_turn(self) -> float:
        """Return when this turn of the client began; it is over when the loop comes round."""
        if self._turn_begun is None:
            self._turn_begun = time.monotonic()
            self._loop.call_soon(self._end_turn)
        return self._turn_begun

    def _end_turn(self) -> None:
        """Continue reading: other clients have had their turn."""
        self._turn_begun = None
        if not self._over:
            self._catch_up()
            self._resume()

    def _catch_up(self) -> None:
        """Take more of the waiting bytes, if earlier responses are read."""
        connection = self._connection
        if connection.is_behind and not connection.is_full and not self._connections.closing:
            self._begin_turn()
            self._feeding = True
            connection.read_on(self._loop.time())
            self._feeding = False
            self._write()

    def _pause(self) -> None:
        if not self._paused and not self._over:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._has_room:
            self._paused = False
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Release everything: a reference cycle would keep it until the collector runs."""
        self._over = True
        self._stop_timer()
        self._peer.leave()
        self._connections.open.discard(self)
        self._connection.lost()
        self._connection.on_output = None
        self._transport = ENDED

    # Writing, once a burst

    def _output(self) -> None:
        """There is something to write; others may add to it until the loop comes round."""
        if not self._writing and not self._feeding:
            self._writing = True
            self._loop.call_soon(self._write_soon)

    def _write_soon(self) -> None:
        self._writing = False
        self._write()

    def _write(self) -> None:
        content = self._connection.take(self._loop.time())
        if content:
            self._transport.write(content)
        if self._connection.state is State.CLOSED:
            self._close()
            return
        if self._connection.state is State.CLOSING and not self._ending:
            # A peer that does not say goodbye too is not waited for as long as one that is idle.
            self._ending = True
            self._arm()
        self._resume()

    def _close(self) -> None:
        """Close once the client has read what was written, or after LINGER_S."""
        if self._over:
            return
        self._over = True
        self._stop_timer()
        self._timer = self._loop.call_later(LINGER_S, self._transport.abort)
        self._transport.close()

    @property
    def _has_room(self) -> bool:
        """Return whether more may be read; while the server stops, only the client's close."""
        if self._connections.closing and self._connection.state is not State.CLOSING:
            return False
        if self._connection.is_full or self._connection.is_behind:
            return False
        return not self._stores_much(HELD_BYTES_MAX // 2)

    def _stores_much(self, most: int) -> bool:
        """Return whether reading must wait until deliveries are stored.

        Incomplete deliveries do not count: storing does not release them. While all clients
        together hold too much, each waits for its own deliveries.
        """
        connection = self._connection
        storing = connection.held_bytes - connection.unfinished_bytes
        return storing > most or (storing > 0 and connection.bodies.crowded)

    # Time

    def _wake_at(self) -> float:
        """Return when the next action is due, by the loop's clock."""
        now = self._loop.time()
        wait = min(self._connection.wake_at() - now, self._client.wake_at() - time.time())
        return now + max(wait, 0.05)

    def _arm(self) -> None:
        if self._over:
            return
        self._stop_timer()
        self._due = self._wake_at()
        self._timer = self._loop.call_at(self._due, self._tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._connection.tick(self._loop.time())
        if self._connection.state is State.OPEN:
            self._client.check_tokens()
        self._write()
        self._arm()

    def check_keys(self) -> None:
        """End the links that replaced keys allowed."""
        self._client.ask_again()
        self._write()
        self._arm()

    # Ending

    @property
    def is_storing(self) -> bool:
        """Return whether a request of the client waits for the disk.

        An incomplete message does not count: the client has not sent all of it.
        """
        return self._connection.under_way > 0

    @property
    def is_unsent(self) -> bool:
        """Return whether written bytes have not left this machine."""
        return self._unread_bytes > 0

    @property
    def _unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def stop_reading(self) -> None:
        """Take nothing more from the client, and give it no more messages."""
        self._client.stop_receiving()
        self._pause()

    def say_goodbye(self) -> None:
        """Close the connection because the server stops; clients reconnect."""
        self._connection.tick(self._loop.time())
        self._connection.close(CONNECTION_FORCED, "the server is stopping: come again")
        self._write()

    def abort(self) -> None:
        self._transport.abort()


class PlainAmqpRefused(asyncio.Protocol):
    """Responds to a plain connection on a TLS port with the TLS header, and closes."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._transport: asyncio.Transport = ENDED

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._peer.abort = self._transport.abort

    def data_received(self, data: bytes) -> None:
        self._transport.write(TLS_HEADER)
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._peer.leave()
        self._transport = ENDED
