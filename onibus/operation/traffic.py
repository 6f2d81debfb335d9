"""What a listener has seen: requests by route and outcome, how long they took, connections."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from onibus.core.tally import Durations

_log = logging.getLogger("onibus.requests")

#: Method and path of a route, with its names in braces; two empty texts where none was found.
RouteKey = tuple[str, str]
NOWHERE: RouteKey = ("", "")


class Asked(Protocol):
    """What has to be known of a request."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    route: RouteKey


class RouteTraffic:
    """The requests of one route."""

    __slots__ = ("seconds", "statuses")

    def __init__(self) -> None:
        #: by the first digit of the status
        self.statuses = [0] * 6
        #: from the request, read whole, to its answer
        self.seconds = Durations()


class Traffic:
    """All that came in, since the start."""

    def __init__(self) -> None:
        self.routes: dict[RouteKey, RouteTraffic] = {}
        #: connections that are open, that were taken, and that were turned away
        self.open: set[Any] = set()
        self.opened = 0
        self.turned_away = 0

    def answered(self, request: Asked, status: int, took: float) -> None:
        """A request was answered, after so many seconds."""
        seen = self.routes.get(request.route) or self._of(request.route)
        seen.statuses[status // 100] += 1
        seen.seconds.note(took)
        if _log.isEnabledFor(logging.DEBUG):
            # Neither the query nor any header: both may have credentials in them.
            method, path = request.method, request.path
            words = {"method": method, "path": path, "status": status, "ms": round(took * 1000, 3)}
            _log.debug("%s %s %s", method, path, status, extra=words)

    def refused(self, status: int) -> None:
        """What is no request at all was answered."""
        self._of(NOWHERE).statuses[status // 100] += 1

    def _of(self, route: RouteKey) -> RouteTraffic:
        seen = self.routes.get(route)
        if seen is None:
            seen = self.routes[route] = RouteTraffic()
        return seen
