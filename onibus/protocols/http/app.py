"""Dispatch of requests: find the route, check the right, run the handler, report errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from io import BytesIO
from typing import Any, Protocol

from onibus.bus import Bus
from onibus.core.errors import Failed, OnibusError, Unauthorized
from onibus.operation.collector import Collector
from onibus.operation.figures import KnownFigures
from onibus.operation.history import History
from onibus.operation.peers import Bodies
from onibus.operation.reports import Reports
from onibus.operation.traffic import Traffic
from onibus.protocols.http import arrow
from onibus.protocols.http.content_encoding import decompress, is_encoded
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.messages import App, Request, Respond, Response
from onibus.protocols.http.problems import Overloaded, problem, refusal
from onibus.protocols.http.route import Call, Route, Router, encoded
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import Doorkeeper
from onibus.security.origins import Origins
from onibus.security.rights import ALL, Granted

_log = logging.getLogger("onibus.http")

#: A caller without restrictions: the server requires no credentials, or the call no right.
ANYBODY = Granted("", ALL)


class Management(App, Protocol):
    """Another application on the same port, which recognises its own requests."""

    def means(self, request: Request) -> bool: ...


class HttpApp:
    """The native API of one bus."""

    def __init__(
        self,
        bus: Bus,
        router: Router,
        keys: Doorkeeper | None,
        *,
        limits: Limits | None = None,
        test_mode: bool = False,
        origins: Origins | None = None,
    ) -> None:
        self.bus = bus
        self._router = router
        #: None if the operator requires no credentials
        self._keys = keys
        self._origins = origins or Origins(keys)
        #: the keys that the key calls manage
        self.kept_keys: KeptKeys | None = None
        #: the Service Bus management application, if enabled
        self.management: Management | None = None
        self.test_mode = test_mode
        #: the OpenAPI document, built on the first request for it, which needs no right
        self.described = b""
        self.limits = limits or Limits()
        self._tasks: set[asyncio.Task[None]] = set()
        self.traffic = Traffic()
        #: the bytes that all connections hold
        self.bodies = Bodies(self.limits.all_bodies_bytes_max)
        self.collector = Collector(bus, self.traffic)
        self.figures = KnownFigures()
        self.history = History(bus.broker, self.figures)
        #: pages about lakes
        self.reports = Reports()
        self.started_ms = bus.broker.clock.wall()

    @property
    def login(self) -> str:
        """What a browser must show to use the console: nothing, the well-known key, or a key."""
        if self._keys is None:
            return "none"
        return "development" if self._keys.development else "key"

    @property
    def routes(self) -> list[Route]:
        return self._router.routes

    def __call__(self, request: Request, respond: Respond) -> None:
        try:
            found = request.head.found
            if found is None:
                management = self.management
                if management is not None and management.means(request):
                    management(request, respond)
                    return
                found = self._find(request)
                if isinstance(found, Response):
                    # It may offer another protocol, and an error be the reason why that was not
                    # accepted.
                    self._origins.check(request.headers)
                    respond(found)
                    return
                request.head.found = found
            route, names = found
            request.route = route.key
            call = Call(self, route, request, names, self.grant(route, request, names), respond)
            compressed = "content-encoding" in request.head.headers and is_encoded(request.headers)
            # A call without a body may need no right: leave a stranger's body untouched.
            if compressed and route.takes is not None:
                self._start(self._answer_encoded(call))
            else:
                self._answer(call)
        except Exception as error:
            self.fail(error, respond)

    def _answer(self, call: Call) -> None:
        route = call.route
        loads = (route.takes_arrow or route.gives_arrow) and not arrow.is_loaded()
        if loads or call.is_large():
            self._start(self._answer_prepared(call, loads))
        else:
            self._dispatch(call)

    async def _answer_prepared(self, call: Call, loads: bool) -> None:
        """Respond to a request that needs modules, or whose body takes long to decode."""
        try:
            if loads:
                await asyncio.to_thread(arrow.load)
            if call.is_large():
                await asyncio.to_thread(call.decode_ahead)
            self._dispatch(call)
        except Exception as error:
            self.fail(error, call.respond)

    def _dispatch(self, call: Call) -> None:
        route = call.route
        if route.fast is not None:
            route.fast(call)
        else:
            assert route.handler is not None
            self.run(route.handler(call), call)

    async def _answer_encoded(self, call: Call) -> None:
        """Respond to a request with a compressed body, whose decompressed bytes count as held."""
        held, respond, body = 0, call.respond, BytesIO()

        def release_and_respond(response: Response) -> None:
            self.bodies.held_bytes -= held
            respond(response)

        call.respond = release_and_respond
        try:
            async for piece in decompress(call.body, self.limits.body_bytes_max):
                held += len(piece)
                self.bodies.held_bytes += len(piece)
                self.refuse_crowds()
                body.write(piece)
            call.body = body.getvalue()
            self._answer(call)
        except Exception as error:
            self.fail(error, call.respond)

    def look(self, request: Request) -> Response | None:
        """Reject a request by its header alone, or let it send its large body."""
        if self.management is not None and self.management.means(request):
            return self.management.look(request)
        try:
            found = self._find(request)
            if isinstance(found, Response):
                return found
            self.grant(found[0], request, found[1])
            is_encoded(request.headers)
        except OnibusError as error:
            return problem(error)
        return None

    def _find(self, request: Request) -> tuple[Route, dict[str, str]] | Response:
        routes, names = self._router.find(request.segments)
        # HEAD is GET without the body, which the connection omits.
        method = "GET" if request.method == "HEAD" else request.method
        route = routes.get(method)
        if route is not None and (self.test_mode or not route.test_mode):
            return route, names
        open_to = sorted(
            one.method for one in routes.values() if self.test_mode or not one.test_mode
        )
        if not open_to:
            return refusal(404, "unknown path: see /openapi.json")
        if "GET" in open_to:
            open_to.append("HEAD")
        allowed = ", ".join(open_to)
        return refusal(
            405, f"method not allowed for {request.path}: use {allowed}", (("allow", allowed),)
        )

    def grant(self, route: Route, request: Request, names: dict[str, str]) -> Granted:
        """Check the right that a route needs, and return the caller's rights."""
        if not route.probe:
            self._origins.check(request.head.headers)
        if self._keys is None:
            request.peer.know()
        if route.right is None or self._keys is None:
            return ANYBODY
        credentials = request.head.headers.get("authorization")
        if credentials is None:
            raise Unauthorized("send a shared access signature in the Authorization header")
        now = time.time()
        granted = request.peer.authenticate(self._keys, credentials, now)
        if not (route.names_entities_inside or route.any_key):
            granted.grant(route.right, names.get("entity", ""), now)
        return granted

    def refuse_crowds(self) -> None:
        """Reject a request with a large response while the connections hold too much.

        Requests that arrived at the same time were all accepted before any response.
        """
        if self.bodies.crowded:
            raise Overloaded

    def run(self, answer: Coroutine[Any, Any, Any], call: Call) -> None:
        """Respond with the result of a coroutine."""
        self._start(self._run(answer, call))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, answer: Coroutine[Any, Any, Any], call: Call) -> None:
        try:
            response = encoded(call.route, await answer)
        except Exception as error:
            self.fail(error, call.respond)
        else:
            call.respond(response)

    def fail(self, error: BaseException, respond: Respond) -> None:
        """Respond with an error; log the details of a server failure."""
        if isinstance(error, Failed) or not isinstance(error, OnibusError):
            _log.error("request failed", exc_info=error)
        respond(problem(error))
