"""SQS connections: HTTP/1.1 with the SQS app."""

from __future__ import annotations

from dataclasses import replace

from onibus.bus import Bus
from onibus.operation.peers import Peers
from onibus.operation.traffic import Traffic
from onibus.protocols.http.connections import Connections
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.usual_heads import UsualHeads
from onibus.protocols.sqs.app import SqsApp
from onibus.protocols.sqs.profile import AWS, Profile
from onibus.protocols.sqs.queues import ACCOUNT
from onibus.security.keys import Keyring
from onibus.security.origins import Origins

#: A megabyte of message may be six times as long on the wire: as JSON that escapes, or in percents.
BODY_BYTES_MAX = 8 << 20


class SqsConnections(Connections):
    """All SQS clients. Their requests are counted with those of the native API."""

    def __init__(
        self,
        bus: Bus,
        keys: Keyring | None,
        limits: Limits,
        counted: Traffic,
        *,
        peers: Peers | None = None,
        profile: Profile = AWS,
        account: str = ACCOUNT,
        origins: Origins | None = None,
    ) -> None:
        self._app = SqsApp(
            bus, keys, profile=profile, account=account, origins=origins, limits=limits
        )
        traffic = Traffic()
        traffic.routes = counted.routes
        bounded = replace(limits, body_bytes_max=min(limits.body_bytes_max, BODY_BYTES_MAX))
        super().__init__(self._app, bounded, traffic, peers)
        # Each request has a different signature, so no header block repeats.
        self.heads = UsualHeads(bounded.unknown_bytes_max)

    def resume(self) -> None:
        """Continue the move tasks that a restart interrupted."""
        self._app.move_tasks.resume()

    async def drain(self, seconds: float) -> None:
        """Accept no new requests; wait for pending ones, then close the remaining connections."""
        await self._app.move_tasks.stop()
        await super().drain(seconds)
