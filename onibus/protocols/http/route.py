"""Routes: what can be asked, by whom, and which code answers.

A route is all that is known of a call: method and path, the right that it needs, the types of what
comes in and goes out. The server finds its way by it, and the OpenAPI document is made of it. A
part of a path in braces is a name; `{entity}` names the entity that the right is asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from onibus.core.errors import InvalidArgument
from onibus.protocols.http.messages import ARROW, JSON, Request, Respond, Response
from onibus.security.rights import Right

if TYPE_CHECKING:
    from onibus.bus import Bus
    from onibus.protocols.http.app import HttpApp

T = Any


class Call:
    """One request on its way through a route."""

    __slots__ = ("app", "names", "request", "respond")

    def __init__(
        self, app: HttpApp, request: Request, names: dict[str, str], respond: Respond
    ) -> None:
        self.app = app
        self.request = request
        #: what stands in the path where the route has braces
        self.names = names
        self.respond = respond

    @property
    def bus(self) -> Bus:
        return self.app.bus

    @property
    def entity(self) -> str:
        return self.names["entity"]

    def decode(self, kind: type[T]) -> Any:
        """Return the body as the type that the route asks for, or refuse it."""
        if self.request.content_type != JSON:
            raise InvalidArgument(f"send {JSON}, not {self.request.content_type}")
        try:
            return msgspec.json.decode(self.request.body or b"{}", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"the body cannot be read: {error}") from None

    def query(self, kind: type[T]) -> Any:
        """Return the query as a struct; its values are texts."""
        try:
            return msgspec.convert(self.request.query, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"the query cannot be read: {error}") from None


#: Answers with what is encoded as JSON, or with a Response; None is 204.
Handler = Callable[[Call], Awaitable[Any]]
#: Answers through `call.respond`, at once or later: for what is asked most.
FastHandler = Callable[[Call], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One thing that can be asked."""

    method: str
    path: str
    summary: str
    #: None where nobody has to show anything
    right: Right | None
    handler: Handler | None = None
    fast: FastHandler | None = None
    #: the types of the body, the query and the answer
    takes: Any = None
    query: Any = None
    gives: Any = None
    status: int = 200
    #: the body, or the answer, is an Arrow IPC stream
    takes_arrow: bool = False
    gives_arrow: bool = False
    #: only where the server is in test mode
    test_mode: bool = False
    tag: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[1:])


@dataclass(slots=True)
class _Node:
    texts: dict[str, _Node] = field(default_factory=dict)
    name: str = ""
    named: _Node | None = None
    routes: dict[str, Route] = field(default_factory=dict)


class Router:
    """Finds the route of a path."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._root = _Node()
        for route in routes:
            node = self._root
            for part in route.parts:
                if part.startswith("{"):
                    if node.named is None:
                        node.named, node.name = _Node(), part.strip("{}")
                    assert node.name == part.strip("{}"), f"two names in {route.path}"
                    node = node.named
                else:
                    node = node.texts.setdefault(part, _Node())
            assert route.method not in node.routes, f"{route.method} {route.path} twice"
            node.routes[route.method] = route

    def find(self, segments: list[str]) -> tuple[dict[str, Route], dict[str, str]]:
        """Return the routes of a path by their methods, and the names in it."""
        node: _Node | None = self._root
        names: dict[str, str] = {}
        for segment in segments:
            assert node is not None
            following = node.texts.get(segment)
            if following is None and node.named is not None and segment:
                names[node.name] = segment
                following = node.named
            if following is None:
                return {}, {}
            node = following
        assert node is not None
        return node.routes, names


def encoded(route: Route, result: Any) -> Response:
    """Return the answer of a handler as a response."""
    if isinstance(result, Response):
        return result
    if result is None and route.gives is None:
        return Response(204)
    return Response(route.status, msgspec.json.encode(result))


def arrow_stream(pieces: Any) -> Response:
    """Return an answer whose body is an Arrow IPC stream, made piece by piece."""
    return Response(200, content_type=ARROW, stream=pieces)
