"""Traffic of a listener: requests by route and outcome, durations and connections."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from onibus.core.tally import Durations

_log = logging.getLogger("onibus.requests")

#: Method and path of a route, with names in braces; two empty strings if no route matched.
RouteKey = tuple[str, str]
NOWHERE: RouteKey = ("", "")


class Asked(Protocol):
    """The parts of a request that are logged."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    route: RouteKey


class RouteTraffic:
    """Requests of one route."""

    __slots__ = ("seconds", "statuses")

    def __init__(self) -> None:
        #: responses by the first digit of their status
        self.statuses = [0] * 6
        #: from the complete request to its response
        self.seconds = Durations()


class Traffic:
    """Traffic since the server started."""

    def __init__(self) -> None:
        self.routes: dict[RouteKey, RouteTraffic] = {}
        #: connections that are open, accepted and rejected
        self.open: set[Any] = set()
        self.opened = 0
        self.turned_away = 0

    def answered(self, request: Asked, status: int, took: float) -> None:
        """Record a response and its duration in seconds."""
        seen = self.routes.get(request.route) or self._of(request.route)
        seen.statuses[status // 100] += 1
        seen.seconds.note(took)
        if _log.isEnabledFor(logging.DEBUG):
            # Neither query nor headers: both may contain credentials.
            method, path = request.method, request.path
            words = {"method": method, "path": path, "status": status, "ms": round(took * 1000, 3)}
            _log.debug("%s %s %s", method, path, status, extra=words)

    def refused(self, status: int) -> None:
        """Record a response to bytes that are not a request."""
        self._of(NOWHERE).statuses[status // 100] += 1

    def _of(self, route: RouteKey) -> RouteTraffic:
        seen = self.routes.get(route)
        if seen is None:
            seen = self.routes[route] = RouteTraffic()
        return seen
