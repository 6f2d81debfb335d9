"""The app: finds the route, asks for the right, hands the request to its code, tells of errors."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

import msgspec

from onibus.bus import Bus
from onibus.core.errors import OnibusError, Unauthorized
from onibus.operation.collector import Collector
from onibus.operation.traffic import Traffic
from onibus.protocols.http.messages import PROBLEM, Request, Respond, Response
from onibus.protocols.http.problems import Problem, problem
from onibus.protocols.http.route import Call, Route, Router, encoded
from onibus.security.rights import ALL, Granted

_log = logging.getLogger("onibus.http")

#: Somebody whom nobody asks: the server is open, or the call needs no right.
ANYBODY = Granted("", ALL)


class Doorkeeper(Protocol):
    """Knows who shows which credentials."""

    def check(self, credentials: str, now: float) -> Granted: ...


class HttpApp:
    """The native API of one bus."""

    def __init__(
        self, bus: Bus, router: Router, keys: Doorkeeper | None, *, test_mode: bool = False
    ) -> None:
        self.bus = bus
        self._router = router
        #: None where the operator asks for no credentials
        self._keys = keys
        self.test_mode = test_mode
        self._tasks: set[asyncio.Task[None]] = set()
        self.traffic = Traffic()
        self.collector = Collector(bus, self.traffic)

    @property
    def routes(self) -> list[Route]:
        return self._router.routes

    def __call__(self, request: Request, respond: Respond) -> None:
        try:
            routes, names = self._router.find(request.segments)
            route = routes.get(request.method)
            if route is None or (route.test_mode and not self.test_mode):
                respond(_no_route(request, sorted(routes)))
                return
            request.route = (route.method, route.path)
            self._grant(route, request, names)
            call = Call(self, request, names, respond)
            if route.fast is not None:
                route.fast(call)
            else:
                task = asyncio.get_running_loop().create_task(self._run(route, call))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception as error:
            self.fail(error, respond)

    def _grant(self, route: Route, request: Request, names: dict[str, str]) -> None:
        """Ask for the right that a route needs: the only place where this is done."""
        if route.right is None or self._keys is None:
            return
        credentials = request.headers.get("authorization")
        if credentials is None:
            raise Unauthorized("show a shared access signature in the Authorization header")
        now = time.time()
        self._keys.check(credentials, now).grant(route.right, names.get("entity", ""), now)

    async def _run(self, route: Route, call: Call) -> None:
        assert route.handler is not None
        try:
            result = await route.handler(call)
        except Exception as error:
            self.fail(error, call.respond)
        else:
            call.respond(encoded(route, result))

    def fail(self, error: BaseException, respond: Respond) -> None:
        """Tell of an error; a fault of ours goes to the log with all its details."""
        if not isinstance(error, OnibusError):
            _log.error("a request failed", exc_info=error)
        respond(problem(error))


def _no_route(request: Request, methods: list[str]) -> Response:
    status = 405 if methods else 404
    detail = f"{request.path} is asked by {', '.join(methods)}" if methods else "no such path"
    document = Problem(
        type="no-such-method" if methods else "no-such-path",
        outcome="refused",
        title="there is nothing there",
        status=status,
        detail=detail,
    )
    headers = (("allow", ", ".join(methods)),) if methods else ()
    return Response(status, msgspec.json.encode(document), PROBLEM, headers)
