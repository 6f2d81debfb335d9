"""All routes of the native API."""

from __future__ import annotations

from onibus.protocols.http.api import entities, messages, operation
from onibus.protocols.http.route import Router


def router() -> Router:
    """Return the way to everything that can be asked."""
    return Router([*entities.ROUTES, *messages.ROUTES, *operation.ROUTES])
