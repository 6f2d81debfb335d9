"""What the server tells of itself: the OpenAPI document."""

from __future__ import annotations

from typing import Any

from onibus.protocols.http.openapi import document
from onibus.protocols.http.route import Call, Route


async def openapi(call: Call) -> dict[str, Any]:
    """Return the OpenAPI document of what this server can be asked."""
    app = call.app
    return document(route for route in app.routes if app.test_mode or not route.test_mode)


ROUTES = [
    Route(
        method="GET",
        path="/openapi.json",
        summary="Describe what this server can be asked, as OpenAPI 3.1.",
        right=None,
        handler=openapi,
        gives=dict[str, Any],
        tag="about",
    ),
]
