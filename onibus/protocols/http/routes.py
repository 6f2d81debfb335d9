"""All routes of the native API."""

from __future__ import annotations

from onibus.protocols.http.api import (
    about,
    claims,
    clock,
    entities,
    keys,
    log,
    messages,
    operation,
    overview,
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

#: The groups, in the order in which they are documented.
GROUPS = (
    entities,
    subscriptions,
    messages,
    receiving,
    settling,
    sessions,
    tidying,
    searching,
    transactions,
    log,
    claims,
    staging,
    keys,
    clock,
    testing,
    overview,
    operation,
    about,
    pages,
)


def routes() -> list[Route]:
    """Return everything that can be asked."""
    return [route for group in GROUPS for route in group.ROUTES]


def router() -> Router:
    """Return the way to everything that can be asked."""
    return Router(routes())
