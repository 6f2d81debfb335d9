"""All routes of the native API."""

from __future__ import annotations

from onibus.protocols.http.api import (
    about,
    claims,
    clock,
    entities,
    inspecting,
    keys,
    lakes,
    log,
    messages,
    operation,
    overview,
    receivers,
    receiving,
    searching,
    sessions,
    settling,
    staging,
    subscriptions,
    testing,
    tidying,
    transactions,
)
from onibus.protocols.http.console import pages
from onibus.protocols.http.route import Route, Router

#: Groups of routes, in the order of the documentation.
GROUPS = (
    entities,
    subscriptions,
    messages,
    receiving,
    settling,
    sessions,
    tidying,
    searching,
    inspecting,
    transactions,
    log,
    lakes,
    claims,
    staging,
    keys,
    clock,
    testing,
    overview,
    receivers,
    operation,
    about,
    pages,
)


def routes() -> list[Route]:
    """Return all routes."""
    return [route for group in GROUPS for route in group.ROUTES]


def router() -> Router:
    """Return the tree of all routes."""
    return Router(routes())
