"""Watching the server over HTTP: metrics and health.

Without credentials, except where the names of entities show.
"""

from __future__ import annotations

import msgspec

from onibus.operation.exposition import CONTENT_TYPE
from onibus.operation.health import HEALTHY, Health, Readiness, health, readiness
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


class Alive(msgspec.Struct):
    """The process answers."""

    alive: bool = True


async def live(call: Call) -> Alive:
    """Answer."""
    return Alive()


async def ready(call: Call) -> Response:
    """Tell whether everything is up, and what is not."""
    found = readiness(call.bus)
    return Response(200 if found.ready else 503, msgspec.json.encode(found))


async def healthy(call: Call) -> Response:
    """Answer as the Service Bus emulator does."""
    found = health(call.bus)
    return Response(200 if found is HEALTHY else 503, msgspec.json.encode(found))


async def metrics(call: Call) -> Response:
    """Return all metrics, added up over entities."""
    return await _page(call, per_object=False)


async def metrics_per_object(call: Call) -> Response:
    """Return all metrics of each entity, partition and reader."""
    return await _page(call, per_object=True)


async def _page(call: Call, *, per_object: bool) -> Response:
    text = await call.app.collector.page(per_object=per_object)
    return Response(200, text.encode(), CONTENT_TYPE)


ROUTES = [
    Route(
        method="GET",
        path="/livez",
        summary="Tell whether the process answers.",
        right=None,
        handler=live,
        gives=Alive,
        tag="operation",
    ),
    Route(
        method="GET",
        path="/readyz",
        summary="Tell whether everything is up, and what is not.",
        right=None,
        handler=ready,
        gives=Readiness,
        may_be_down=True,
        tag="operation",
    ),
    Route(
        method="GET",
        path="/health",
        summary="Tell whether the bus works, as the Service Bus emulator does.",
        right=None,
        handler=healthy,
        gives=Health,
        may_be_down=True,
        tag="operation",
    ),
    Route(
        method="GET",
        path="/metrics",
        summary="Return metrics for Prometheus, added up over entities.",
        right=None,
        handler=metrics,
        gives_text=True,
        tag="operation",
    ),
    Route(
        method="GET",
        path="/metrics/per-object",
        summary="Return metrics for Prometheus of each entity, partition and reader.",
        right=Right.MANAGE,
        handler=metrics_per_object,
        gives_text=True,
        tag="operation",
    ),
]
