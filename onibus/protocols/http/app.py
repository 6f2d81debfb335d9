"""The app: finds the route, asks for the right, hands the request to its code, tells of errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from onibus.bus import Bus
from onibus.core.errors import Failed, OnibusError, Unauthorized
from onibus.operation.collector import Collector
from onibus.operation.traffic import Traffic
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.messages import App, Request, Respond, Response
from onibus.protocols.http.problems import Overloaded, problem, refusal
from onibus.protocols.http.route import Call, Route, Router, encoded
from onibus.security.kept_keys import KeptKeys
from onibus.security.origins import refuse_web_pages
from onibus.security.rights import ALL, Granted

_log = logging.getLogger("onibus.http")

#: Somebody whom nobody asks: the server is open, or the call needs no right.
ANYBODY = Granted("", ALL)


class Doorkeeper(Protocol):
    """Knows who shows which credentials."""

    def check(self, credentials: str, now: float) -> Granted: ...


class Management(App, Protocol):
    """Another app on the same port, which knows its own requests."""

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
    ) -> None:
        self.bus = bus
        self._router = router
        #: None where the operator asks for no credentials
        self._keys = keys
        #: what is asked about keys themselves
        self.kept_keys: KeptKeys | None = None
        #: what answers requests for the management of Service Bus, if it is spoken
        self.management: Management | None = None
        self.test_mode = test_mode
        self.limits = limits or Limits()
        self._tasks: set[asyncio.Task[None]] = set()
        self.traffic = Traffic()
        self.collector = Collector(bus, self.traffic)

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
                    respond(found)
                    return
                request.head.found = found
            route, names = found
            request.route = route.key
            call = Call(self, route, request, names, self._grant(route, request, names), respond)
            if route.fast is not None:
                route.fast(call)
            else:
                assert route.handler is not None
                self.run(route.handler(call), call)
        except Exception as error:
            self.fail(error, respond)

    def look(self, request: Request) -> Response | None:
        """Refuse a request of which only the head is there, or let it send its large body."""
        if self.management is not None and self.management.means(request):
            return self.management.look(request)
        try:
            found = self._find(request)
            if isinstance(found, Response):
                return found
            self._grant(found[0], request, found[1])
        except OnibusError as error:
            return problem(error)
        return None

    def _find(self, request: Request) -> tuple[Route, dict[str, str]] | Response:
        routes, names = self._router.find(request.segments)
        # HEAD is GET without the body, which the connection leaves out.
        method = "GET" if request.method == "HEAD" else request.method
        route = routes.get(method)
        if route is not None and (self.test_mode or not route.test_mode):
            return route, names
        open_to = sorted(
            one.method for one in routes.values() if self.test_mode or not one.test_mode
        )
        if not open_to:
            return refusal(404, "no such path")
        if "GET" in open_to:
            open_to.append("HEAD")
        allowed = ", ".join(open_to)
        return refusal(405, f"{request.path} is asked by {allowed}", (("allow", allowed),))

    def _grant(self, route: Route, request: Request, names: dict[str, str]) -> Granted:
        """Ask for the right that a route needs, and tell who asks."""
        if self._keys is None:
            refuse_web_pages(request.headers)
        if route.right is None or self._keys is None:
            return ANYBODY
        credentials = request.head.headers.get("authorization")
        if credentials is None:
            raise Unauthorized("show a shared access signature in the Authorization header")
        now = time.time()
        granted = self._keys.check(credentials, now)
        if not route.names_entities_inside:
            granted.grant(route.right, names.get("entity", ""), now)
        return granted

    def refuse_crowds(self) -> None:
        """Refuse what may be answered at length while too much is held already.

        Requests that came in the same moment were all let in before any of them was answered.
        """
        if self.traffic.held_bytes > self.limits.all_bodies_bytes_max:
            raise Overloaded

    def run(self, answer: Coroutine[Any, Any, Any], call: Call) -> None:
        """Answer with what a coroutine returns."""
        task = asyncio.get_running_loop().create_task(self._run(answer, call))
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
        """Tell of an error; a fault of ours goes to the log with all its details."""
        if isinstance(error, Failed) or not isinstance(error, OnibusError):
            _log.error("a request failed", exc_info=error)
        respond(problem(error))
