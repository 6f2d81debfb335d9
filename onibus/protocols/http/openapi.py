"""The OpenAPI 3.1 document of the routes and their types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from onibus.api.wire import ARROW, BYTES, JSON, PROBLEM, Problem
from onibus.protocols.http.route import Route

_REF = "#/components/schemas/{name}"
_SCHEME = "sharedAccessSignature"
_NUMBERS_IN_PATHS = {"partition", "number"}

_ABOUT = """\
The native API of a durable message bus. Names in paths are percent-encoded: a slash in a name is
%2F. The name of a subscription is topic/subscriptions/name. Times are in milliseconds: durations,
or times since 1970 in UTC. Errors are problem documents. Their outcome is refused (nothing was
changed), unknown (the change may or may not be stored) or failed (the server has a problem)."""


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document of these routes."""
    routes = list(routes)
    types = {id(kind): kind for route in routes for kind in _types_of(route)}
    named, components = msgspec.json.schema_components(
        [*types.values(), Problem], ref_template=_REF
    )
    components = {name: _simple(schema) for name, schema in components.items()}
    schemas = dict(zip(types, named, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, schemas, components
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Onibus", "version": "1", "description": _ABOUT},
        "tags": [{"name": name} for name in sorted({route.tag for route in routes})],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {"Problem": _content("An error.", PROBLEM, named[-1])},
            "securitySchemes": {
                _SCHEME: {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "SharedAccessSignature sr=…&sig=…&se=…&skn=…, or Bearer …",
                }
            },
        },
    }


def _simple(schema: Any) -> Any:
    """Return a schema with pairs as lists of two: some tools support only those."""
    if isinstance(schema, list):
        return [_simple(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    simple = {name: _simple(part) for name, part in schema.items()}
    kinds = simple.get("prefixItems")
    if isinstance(kinds, list) and all(kind == kinds[0] for kind in kinds):
        del simple["prefixItems"]
        simple["items"] = kinds[0]
    return simple


def _types_of(route: Route) -> list[Any]:
    return [kind for kind in (route.takes, route.query, route.gives) if kind is not None]


def _operation(route: Route, schemas: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    handler = route.fast or route.handler
    assert handler is not None
    operation: dict[str, Any] = {
        "operationId": f"{handler.__module__.rpartition('.')[2]}.{handler.__name__}",
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [_in_path(part) for part in route.parts if part.startswith("{")],
        "responses": _responses(route, schemas),
        "security": [] if route.right is None else [{_SCHEME: []}],
    }
    if route.right is not None:
        operation["description"] = f"Requires the right {route.right.value}."
        operation["x-right"] = route.right.value
    if route.query is not None:
        schema = components[schemas[id(route.query)]["$ref"].rpartition("/")[2]]
        operation["parameters"] += _in_query(schema)
    if route.takes is not None:
        content = {JSON: {"schema": schemas[id(route.takes)]}}
        if route.takes_arrow:
            content[ARROW] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": _is_needed(route.takes), "content": content}
    return operation


def _in_path(part: str) -> dict[str, Any]:
    name = part.strip("{}")
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if name in _NUMBERS_IN_PATHS:
        schema = {"type": "integer", "minimum": 0}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", []),
            "schema": content,
        }
        for name, content in schema["properties"].items()
    ]


def _is_needed(kind: Any) -> bool:
    """Return whether a body is required: some field has no default."""
    return any(field.required for field in msgspec.structs.fields(kind))


def _responses(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"description": "Done."}
    if route.gives is not None:
        told = _content("Done.", JSON, schemas[id(route.gives)])
    if route.gives_arrow:
        arrow = _content("Done.", ARROW, {"type": "string", "format": "binary"})
        told.setdefault("content", {}).update(arrow["content"])
    if route.gives_text:
        told = _content("Done.", "text/plain", {"type": "string"})
    if route.gives_bytes:
        told = _content("Done.", BYTES, {"type": "string", "format": "binary"})
    problem = {"$ref": "#/components/responses/Problem"}
    found = {str(route.answers_with): told, "4XX": problem, "5XX": problem}
    if route.may_be_down:
        found["503"] = told | {"description": "Unhealthy."}
    return found


def _content(description: str, kind: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema}}}
