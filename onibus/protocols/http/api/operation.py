"""Monitoring over HTTP: probes for any client, metrics for a key with Monitor.

Probes only report the server's health, and respond under any name of its host.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from onibus.api.operation import Alive
from onibus.operation.exposition import CONTENT_TYPE
from onibus.operation.health import HEALTHY, Health, Readiness, health, readiness
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


async def live(call: Call) -> Alive:
    """Respond."""
    return Alive()


async def ready(call: Call) -> Response:
    """Return whether everything is up."""
    found = readiness(call.bus)
    return Response(200 if found.ready else 503, msgspec.json.encode(found))


async def healthy(call: Call) -> Response:
    """Respond like the Service Bus emulator."""
    found = health(call.bus)
    return Response(200 if found is HEALTHY else 503, msgspec.json.encode(found))


async def metrics(call: Call) -> Response:
    """Return all metrics, aggregated over entities."""
    return await _page(call, per_object=False)


async def metrics_per_object(call: Call) -> Response:
    """Return all metrics per entity, partition and reader."""
    return await _page(call, per_object=True)


async def _page(call: Call, *, per_object: bool) -> Response:
    pieces = await call.app.collector.page(per_object=per_object)
    if len(pieces) == 1:
        return Response(200, pieces[0], CONTENT_TYPE)
    return Response(200, content_type=CONTENT_TYPE, stream=_stream(pieces))


async def _stream(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


ROUTES = [
    Route(
        method="GET",
        path="/livez",
        summary="Return whether the process responds.",
        right=None,
        probe=True,
        handler=live,
        gives=Alive,
        tag="operation",
    ),
    Route(
        method="GET",
        path="/readyz",
        summary="Return whether every store and partition is available.",
        right=None,
        probe=True,
        handler=ready,
        gives=Readiness,
        may_be_down=True,
        tag="operation",
    ),
    Route(
        method="GET",
        path="/health",
        summary="Return the status of the bus, as the Service Bus emulator does.",
        right=None,
        probe=True,
        handler=healthy,
        gives=Health,
        may_be_down=True,
        tag="operation",
    ),
    Route(
        method="GET",
        path="/metrics",
        summary="Return metrics for Prometheus, summed over entities.",
        right=Right.MONITOR,
        handler=metrics,
        gives_text=True,
        tag="operation",
    ),
    Route(
        method="GET",
        path="/metrics/per-object",
        summary="Return metrics for Prometheus, for each entity, partition and reader.",
        right=Right.MONITOR,
        handler=metrics_per_object,
        gives_text=True,
        tag="operation",
    ),
]
