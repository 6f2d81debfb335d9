"""What schemathesis does to the requests it makes up, so that they get further than "not found".

It is loaded by the schemathesis command (test_schemathesis.py), not by pytest.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

import schemathesis

#: Entities that are there; see `prepare` in test_schemathesis.py.
ENTITIES = ("q", "sessions", "fifo", "parts", "t", "t/subscriptions/s")
#: Longer waits would only make the run longer.
WAIT_MS_MAX = 20

_next = cycle(ENTITIES)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Ask about an entity that is there, and do not wait long."""
    valid = case.meta is None or case.meta.generation.mode.is_positive
    path = case.operation.path
    if valid and path.startswith("/v1/entities/{entity}") and case.path_parameters:
        case.path_parameters["entity"] = next(_next)
    body = case.body
    wait_ms = body.get("wait_ms") if isinstance(body, dict) else None
    if type(wait_ms) is int and WAIT_MS_MAX < wait_ms <= 20_000:
        body["wait_ms"] = WAIT_MS_MAX
