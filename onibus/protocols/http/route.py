"""Routes: the calls of the API, their rights and handlers.

A route defines a call: method and path, the right that it needs, the types of its request and
response. The server dispatches by it, and the OpenAPI document is generated from it. A part of a
path in braces is a name; `{entity}` names the entity for which the right is checked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from onibus.api.wire import JSON
from onibus.core.errors import InvalidArgument
from onibus.gateway.receiving import stop_waiting
from onibus.operation.traffic import RouteKey
from onibus.protocols.http.messages import Request, Respond, Response
from onibus.protocols.http.problems import WrongContentType
from onibus.protocols.json_values import VALUES_MAX, has_more_values
from onibus.security.rights import Granted, Right
from onibus.shard.replies import Reply

if TYPE_CHECKING:
    from onibus.bus import Bus
    from onibus.protocols.http.app import HttpApp


#: Larger JSON bodies are decoded, and results of more messages encoded, on a thread.
DECODED_HERE_BYTES = 256 << 10
ENCODED_HERE_COUNT = 200


class Call:
    """A request in its route."""

    __slots__ = ("_decoded", "app", "body", "granted", "names", "request", "respond", "route")

    def __init__(
        self,
        app: HttpApp,
        route: Route,
        request: Request,
        names: dict[str, str],
        granted: Granted,
        respond: Respond,
    ) -> None:
        self.app = app
        self.route = route
        self.request = request
        #: the body of the request, decompressed
        self.body = request.body
        #: values of the names in the path
        self.names = names
        self.granted = granted
        self.respond = respond
        #: the body as the type of the route, if a thread has decoded it
        self._decoded: Any = None

    @property
    def bus(self) -> Bus:
        return self.app.bus

    @property
    def entity(self) -> str:
        return self.names["entity"]

    def number(self, name: str) -> int:
        """Return a part of the path that must be a whole number."""
        text = self.names[name]
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise InvalidArgument(f"{name} in the path must be a whole number, not {text!r}")
        return int(text)

    def grant(self, right: Right, entity: str) -> None:
        """Check a right on an entity that is not in the path."""
        self.granted.grant(right, entity, time.time())

    def check_again(self) -> None:
        """Check the caller's right once more: a stream outlives tokens and keys."""
        self.granted = self.app.grant(self.route, self.request, self.names)

    def decode(self, kind: Any) -> Any:
        """Return the body as the type of the route, or reject it."""
        return self.read(decoder_of(kind))

    def is_large(self) -> bool:
        """Return whether decoding the body would delay other requests."""
        return (
            len(self.body) > DECODED_HERE_BYTES
            and self.route.takes is not None
            and self.request.content_type == JSON
        )

    def decode_ahead(self) -> None:
        """Decode the body as the type of the route, on any thread."""
        self._decoded = self.decode(self.route.takes)

    def read(self, decoder: msgspec.json.Decoder[Any]) -> Any:
        """Return the body, decoded with a given decoder, or reject it."""
        if self._decoded is not None and decoder.type is self.route.takes:
            return self._decoded
        if self.request.content_type != JSON:
            raise WrongContentType(f"send {JSON}, not {self.request.content_type}")
        if has_more_values(self.body, VALUES_MAX):
            raise InvalidArgument(
                f"the body has more than {VALUES_MAX} values: send fewer in one request"
            )
        try:
            return decoder.decode(self.body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"invalid body: {error}") from None

    async def encode(self, make: Callable[[Any], Any], result: list[Any]) -> Response:
        """Return the response that `make` makes of a result, on a thread if it is large."""
        if len(result) > ENCODED_HERE_COUNT:
            return await asyncio.to_thread(lambda: encoded(self.route, make(result)))
        return encoded(self.route, make(result))

    def query(self, kind: Any) -> Any:
        """Return the query as a struct; its values are strings."""
        try:
            return msgspec.convert(self.request.query, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"invalid query: {error}") from None

    def ask(self, command: Callable[[Reply], Any], make: Callable[[Any], Any]) -> None:
        """Send the bus a command, and respond with what `make` makes of its result.

        Without a task or a future, for the most frequent calls. If the command returns a Waiter, it
        is cancelled when the client disconnects or the server stops.
        """
        bus = self.bus
        bus.check_alive()
        waiter = command(CallResponse(self, make))
        if waiter is not None:
            self.request.hurry = lambda: stop_waiting(bus.broker, waiter)


class CallResponse:
    """A broker reply that responds over HTTP."""

    __slots__ = ("_call", "_done", "_make")

    def __init__(self, call: Call, make: Callable[[Any], Any]) -> None:
        self._call = call
        self._make = make
        self._done = False

    def done(self) -> bool:
        return self._done

    def is_unwanted(self) -> bool:
        return self._call.request.peer.has_left

    def set_result(self, result: Any) -> None:
        self._done = True
        call = self._call
        try:
            response = encoded(call.route, self._make(result))
        except Exception as error:
            call.app.fail(error, call.respond)
        else:
            call.respond(response)

    def set_exception(self, exception: BaseException) -> None:
        self._done = True
        self._call.app.fail(exception, self._call.respond)


@cache
def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type; each is created once."""
    return msgspec.json.Decoder(kind)


#: Returns the value to encode as JSON, or a Response; None means 204.
Handler = Callable[[Call], Coroutine[Any, Any, Any]]
#: Responds through `call.ask` or `call.respond`, now or later: for the most frequent calls.
FastHandler = Callable[[Call], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A call of the API."""

    method: str
    path: str
    summary: str
    #: None if the call needs no credentials
    right: Right | None
    handler: Handler | None = None
    fast: FastHandler | None = None
    #: types of the body, the query and the response
    takes: Any = None
    query: Any = None
    gives: Any = None
    status: int = 200
    #: the body, or the response, is an Arrow IPC stream
    takes_arrow: bool = False
    gives_arrow: bool = False
    #: the response is plain text, not JSON
    gives_text: bool = False
    #: the response is bytes of any kind
    gives_bytes: bool = False
    #: it responds with 503 and the same type if something is down
    may_be_down: bool = False
    #: only in test mode
    test_mode: bool = False
    #: it only reports the server's health, and responds under any name of its host
    probe: bool = False
    tag: str = ""
    #: the handler checks the right for each entity that the body names
    names_entities_inside: bool = False
    #: every valid key or token is enough, whatever it allows
    any_key: bool = False
    #: what its traffic is counted under
    key: RouteKey = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.method, self.path))

    @property
    def answers_with(self) -> int:
        """The status of a successful response."""
        tells = self.gives or self.gives_arrow or self.gives_text or self.gives_bytes
        return self.status if tells else 204

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
    """A tree of routes by path."""

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
        """Return the routes of a path by method, and the names in it."""
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


_encode = msgspec.json.Encoder().encode


def encoded(route: Route, result: Any) -> Response:
    """Return the result of a handler as a response."""
    if isinstance(result, Response):
        return result
    if route.gives is None:
        return Response(204)
    return Response(route.status, _encode(result))
