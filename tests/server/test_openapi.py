"""The OpenAPI document: whole, valid, and true of the routes."""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from onibus.api.wire import Problem
from onibus.protocols.http.openapi import document
from onibus.protocols.http.problems import HTTP_TYPES, problem
from onibus.protocols.http.route import Route
from onibus.protocols.http.routes import routes
from onibus.security.rights import Right
from tests.bus_helpers import run
from tests.server.http_helpers import serving
from tests.source_tree import text_of
from tools import http_calls

#: OpenAPI 3.1 has the schemas of this draft.
DRAFT = "https://json-schema.org/draft/2020-12/schema"
ROUTES = routes()
DOCUMENT = msgspec.json.decode(msgspec.json.encode(document(ROUTES)))

every_route = pytest.mark.parametrize(
    "route", ROUTES, ids=[f"{one.method} {one.path}" for one in ROUTES]
)


def operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][route.path][route.method.lower()]
    return found


def references(part: Any) -> list[str]:
    """Return everything in a part of the document that is defined elsewhere in it."""
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [one for value in part.values() for one in references(value)]
    if isinstance(part, list):
        return [one for value in part for one in references(value)]
    return []


def resolve(reference: str) -> Any:
    found = DOCUMENT
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


@every_route
def test_a_route_says_what_it_is(route: Route) -> None:
    assert route.summary.endswith("."), route.summary
    assert route.summary[0].isupper()
    assert route.tag
    assert (route.handler is None) != (route.fast is None)
    assert isinstance(route.right, Right) or not route.path.startswith("/v1/")
    if route.method in ("PUT", "PATCH"):
        assert route.takes is not None
    if route.method == "GET":
        assert route.gives or route.gives_arrow or route.gives_text or route.gives_bytes
    for kind in (route.takes, route.query, route.gives):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert kind.__doc__, kind
    for kind in (route.takes, route.query):
        if kind is not None:
            assert kind.__struct_config__.forbid_unknown_fields, kind


@every_route
def test_a_route_is_documented_as_it_is(route: Route) -> None:
    told = operation(route)
    assert told["summary"] == route.summary
    assert told.get("x-right") == (route.right and route.right.value)
    assert bool(told["security"]) == (route.right is not None)
    named = [one["name"] for one in told["parameters"] if one["in"] == "path"]
    assert named == re.findall(r"{(\w+)}", route.path)
    asked = {one["name"] for one in told["parameters"] if one["in"] == "query"}
    assert asked == set(route.query.__struct_fields__ if route.query else ())
    assert ("requestBody" in told) == (route.takes is not None)
    good = [status for status in told["responses"] if status.startswith("2")]
    assert good == [str(route.answers_with)]
    assert told["responses"]["4XX"] == {"$ref": "#/components/responses/Problem"}


def test_the_document_is_whole() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert {
        (path, method.upper()) for path, ops in DOCUMENT["paths"].items() for method in ops
    } == {(route.path, route.method) for route in ROUTES}
    ids = [one["operationId"] for ops in DOCUMENT["paths"].values() for one in ops.values()]
    assert len(set(ids)) == len(ids)
    for reference in references(DOCUMENT):
        assert resolve(reference), reference
    used = {one.rpartition("/")[2] for one in references(DOCUMENT)}
    queries = {route.query.__name__ for route in ROUTES if route.query}
    assert set(DOCUMENT["components"]["schemas"]) - queries <= used


def test_every_schema_is_one() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema | {"$schema": DRAFT})
        jsonschema_rs.validator_for(
            {
                "$schema": DRAFT,
                "$ref": f"#/components/schemas/{name}",
                "components": DOCUMENT["components"],
            }
        )


def test_problems_match_their_schema() -> None:
    validator = jsonschema_rs.validator_for(
        {"$ref": "#/components/schemas/Problem", "components": DOCUMENT["components"]}
    )
    validator.validate(msgspec.json.decode(problem(ValueError("x")).body))
    assert Problem.__doc__


@run
async def test_the_server_publishes_it_to_everybody() -> None:
    async with serving() as client:
        response = await client.http.get("/openapi.json")
        assert response.headers["content-type"] == "application/json"
        assert response.json() == DOCUMENT


def test_the_page_of_calls_is_up_to_date() -> None:
    page = http_calls.PAGE.read_text("utf-8")
    assert page == http_calls.render(), "docs/http-calls.md is stale: make docs"


def test_problems_that_only_http_has_are_documented() -> None:
    page = text_of("docs/http-api.md")
    listed = re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", page, re.MULTILINE)
    assert {(kind, int(status)) for kind, status in listed} == {
        (kind, status) for status, kind in HTTP_TYPES.items()
    }
