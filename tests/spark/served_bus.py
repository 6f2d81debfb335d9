"""A server in this process, over stores in memory and a clock that tests move: fast and exact."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from onibus.client import Client, Retry
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME, Keyring
from onibus.server.server import Server
from tests.bus_helpers import Disks, ManualClock, until

T = TypeVar("T")


class ServedBus:
    """A bus and its server, on their own thread."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> ServedBus:
        self._thread.start()
        self.do(self._start())
        url = f"http://127.0.0.1:{self._server.http_port}"
        self.options = {"url": url, "keyName": ROOT_NAME, "key": DEVELOPMENT_KEY}
        self.client = Client.connect(
            url, key_name=ROOT_NAME, key=DEVELOPMENT_KEY, verify=False, retry=Retry(attempts=1)
        )
        return self

    async def _start(self) -> None:
        self.bus = await Disks().bus(self.clock, "a", "b")
        self._server = Server(self.bus, Keyring(development=True), http_port=0)
        await self._server.__aenter__()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def requests(self) -> Counter[str]:
        """Return how many requests the server has responded to, by route."""
        routes = self._server.app.traffic.routes
        return Counter({" ".join(key): sum(one.statuses) for key, one in routes.items()})

    def advance(self, ms: int) -> None:
        """Let time pass, and the server do what is due."""

        async def passing() -> None:
            self.clock.advance(ms)
            self.bus.broker.tick()

        self.do(passing())

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds on the server's thread."""

        async def waiting() -> None:
            await until(condition)

        self.do(waiting())

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        await self._server.__aexit__(None, None, None)
        await self.bus.close()
