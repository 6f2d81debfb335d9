"""Self-description of the server: the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from onibus.protocols.http.messages import Response
from onibus.protocols.http.openapi import document
from onibus.protocols.http.route import Call, Route


async def openapi(call: Call) -> Response:
    """Return the OpenAPI document of this server's calls."""
    app = call.app
    if not app.described:
        routes = [route for route in app.routes if app.test_mode or not route.test_mode]
        app.described = await asyncio.to_thread(lambda: msgspec.json.encode(document(routes)))
    return Response(200, app.described)


ROUTES = [
    Route(
        method="GET",
        path="/openapi.json",
        summary="Describe the API of this server, as OpenAPI 3.1.",
        right=None,
        handler=openapi,
        gives=dict[str, Any],
        tag="about",
    ),
]
