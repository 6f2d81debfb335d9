"""Generator of the table in docs/security.md: the right that each request needs.

python -m tools.rights           write the table
python -m tools.rights --check   fail if it is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from onibus.protocols.amqp.service_bus.client import LINKS
from onibus.protocols.amqp.service_bus.management import OPERATIONS
from onibus.protocols.atom import paths
from onibus.protocols.atom.app import ACTIONS as MANAGEMENT
from onibus.protocols.atom.app import right_of
from onibus.protocols.http.routes import routes
from onibus.protocols.sqs.actions.table import ACTIONS
from onibus.security.rights import Right

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- begin of the table of rights -->\n", "<!-- end of the table of rights -->\n"

NATIVE, ATOM, SQS, AMQP = "native", "management", "SQS", "AMQP"

#: How the paths of management are written.
PATHS = {
    paths.NAMESPACE: "/$namespaceinfo",
    paths.QUEUES: "/$Resources/queues",
    paths.TOPICS: "/$Resources/topics",
    paths.ENTITY: "/{entity}",
    paths.SUBSCRIPTION_LIST: "/{topic}/subscriptions",
    paths.SUBSCRIPTION: "/{topic}/subscriptions/{subscription}",
    paths.RULE_LIST: "/{topic}/subscriptions/{subscription}/rules",
    paths.RULE: "/{topic}/subscriptions/{subscription}/rules/{rule}",
    paths.MESSAGES: "/{entity}/messages",
    paths.FIRST_MESSAGE: "/{entity}/messages/head",
    paths.LOCKED_MESSAGE: "/{entity}/messages/{id}/{token}",
}

#: Credentials of a caller: none, or a token of a key that has one right only.
NOTHING = "nothing"
HOLDERS = (NOTHING, *(right.value for right in Right))


class Row(NamedTuple):
    """One request."""

    protocol: str
    request: str
    #: which callers may make it
    enough: frozenset[str]
    #: what it was made of
    source: Any


def _allowed(*rights: Right) -> frozenset[str]:
    """Return who may do what one of some rights allows."""
    return frozenset(right.value for right in (*rights, Right.MANAGE))


def rows() -> Iterator[Row]:
    """Yield every request of every protocol."""
    for route in routes():
        enough = frozenset(HOLDERS) if route.right is None else _allowed(route.right)
        if route.names_entities_inside:
            # Send for what it sends, Listen for what it settles.
            enough = _allowed(Right.SEND, Right.LISTEN)
        if route.any_key:
            enough = frozenset(HOLDERS) - {NOTHING}
        yield Row(NATIVE, f"{route.method} {route.path}", enough, route)
    for kind, actions in MANAGEMENT.items():
        for method in actions:
            yield Row(ATOM, f"{method} {PATHS[kind]}", _allowed(right_of(kind)), (method, kind))
    for name, action in ACTIONS.items():
        yield Row(SQS, name, _allowed(*action.rights), name)
    for kind, needed in LINKS.items():
        with_token = frozenset(HOLDERS) - {NOTHING}
        found = (
            frozenset(HOLDERS) if needed is None else _allowed(*needed) if needed else with_token
        )
        yield Row(AMQP, kind, found, kind)
    for name, operation in OPERATIONS.items():
        request = f"$management {name.removeprefix('com.microsoft:')}"
        yield Row(AMQP, request, _allowed(operation.right), name)


def render() -> str:
    """Return the table, between its marks."""
    lines = [f"| protocol | request | {' | '.join(HOLDERS)} |", "| --- " * (2 + len(HOLDERS)) + "|"]
    for row in rows():
        cells = ["yes" if holder in row.enough else "" for holder in HOLDERS]
        lines.append(f"| {row.protocol} | `{row.request}` | {' | '.join(cells)} |")
    return "\n".join((BEGIN, *lines, "", END))


def written(page: str) -> str:
    """Return the page with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} lacks the marks of the table"
    return before + render() + after


def main(arguments: list[str] | None = None) -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(prog="python -m tools.rights", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    page = PAGE.read_text("utf-8")
    if parser.parse_args(arguments).check:
        return 0 if page == written(page) else 1
    PAGE.write_text(written(page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
