"""Transport to a Bus in this process: the same API, without a network."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from onibus.bus import Bus
from onibus.client.asking import Ask, ServerResponse
from onibus.protocols.http.app import HttpApp
from onibus.protocols.http.messages import Head, Request, Response
from onibus.protocols.http.routes import router
from onibus.shard.clock import MovableClock


class InProcess:
    """A server's API on a Bus, without credentials."""

    def __init__(self, bus: Bus) -> None:
        in_memory = isinstance(bus.broker.clock.machine, MovableClock)
        self._app = HttpApp(bus, router(), None, test_mode=in_memory)

    async def ask(self, ask: Ask) -> ServerResponse:
        """Execute a request and return its response."""
        headers = {"accept": ask.accept, "content-type": ask.content_type}
        head = Head(ask.method, ask.path, urlencode(ask.query), headers)
        request = Request(head, ask.body)
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def respond(response: Response) -> None:
            if not answered.done():
                answered.set_result(response)

        self._app(request, respond)
        try:
            response = await answered
        except asyncio.CancelledError:
            if request.hurry is not None:
                # The caller is gone: release messages that nothing will receive.
                request.hurry()
            raise
        body = response.body
        if response.stream is not None:
            body = b"".join([piece async for piece in response.stream])
        return ServerResponse(response.status, body, response.content_type)

    async def close(self) -> None:
        """Do nothing: the owner of the bus closes it."""
