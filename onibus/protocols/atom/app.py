"""The app: finds out what a path names, asks for the right to manage it, lets an action answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from onibus.bus import Bus
from onibus.core.errors import Failed, Forbidden, OnibusError, Unauthorized
from onibus.protocols.atom import entities, namespace, paths, rule_calls
from onibus.protocols.atom.call import Call
from onibus.protocols.atom.errors import NoSuchMethod, refusal
from onibus.protocols.atom.paths import Place, place_of
from onibus.protocols.atom.xml import BODY_BYTES_MAX
from onibus.protocols.http.messages import Request, Respond, Response
from onibus.protocols.http.problems import BodyTooLarge
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import Keyring
from onibus.security.origins import Origins
from onibus.security.rights import ALL, Granted, Right

_log = logging.getLogger("onibus.atom")

Action = Callable[[Call], Awaitable[Response]]

#: What everything here needs, on what the path names.
RIGHT = Right.MANAGE
#: What can be asked, by what the path names and the method.
ACTIONS: dict[str, dict[str, Action]] = {
    paths.NAMESPACE: {"GET": namespace.show_namespace},
    paths.QUEUES: {"GET": entities.list_queues},
    paths.TOPICS: {"GET": entities.list_topics},
    paths.ENTITY: {
        "PUT": entities.put_entity,
        "GET": entities.show_entity,
        "DELETE": entities.delete_entity,
    },
    paths.SUBSCRIPTION_LIST: {"GET": entities.list_subscriptions},
    paths.SUBSCRIPTION: {
        "PUT": entities.put_subscription,
        "GET": entities.show_subscription,
        "DELETE": entities.delete_subscription,
    },
    paths.RULE_LIST: {"GET": rule_calls.list_rules},
    paths.RULE: {
        "PUT": rule_calls.put_rule,
        "GET": rule_calls.show_rule,
        "DELETE": rule_calls.delete_rule,
    },
}


class AtomApp:
    """Management of one bus as Service Bus has it."""

    def __init__(
        self, bus: Bus, keys: KeptKeys | Keyring | None, origins: Origins | None = None
    ) -> None:
        self.bus = bus
        self.kept_keys = keys if isinstance(keys, KeptKeys) else None
        #: None where the operator asks for no credentials
        self._keys = keys.keyring if isinstance(keys, KeptKeys) else keys
        self._origins = origins or Origins(self._keys)
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def means(request: Request) -> bool:
        """Tell whether a request is one of these: its query names a version."""
        return "api-version=" in request.head.query_text

    def __call__(self, request: Request, respond: Respond) -> None:
        try:
            call, action = self._call(request)
        except Exception as error:
            respond(self._refusal(request, error))
            return
        task = asyncio.get_running_loop().create_task(self._answer(action, call, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def look(self, request: Request) -> Response:
        """Refuse a body that is too large to be a description."""
        return _refused(request, BodyTooLarge(f"a body has at most {BODY_BYTES_MAX} bytes"))

    def known(self, request: Request, credentials: str | None) -> Granted:
        """Return what the credentials of a request allow, or reject them."""
        if self._keys is None:
            request.peer.know()
            return Granted("", ALL)
        if credentials is None:
            raise Unauthorized("show a shared access signature in the Authorization header")
        return request.peer.authenticate(self._keys, credentials, time.time())

    def _call(self, request: Request) -> tuple[Call, Action]:
        self._origins.check(request.headers)
        granted = self.known(request, request.headers.get("authorization"))
        place = place_of(request.path)
        _grant(granted, place, request)
        actions = ACTIONS[place.kind]
        method = "GET" if request.method == "HEAD" else request.method
        if method not in actions:
            raise NoSuchMethod(f"this path is asked by {', '.join(actions)}")
        request.route = (method, f"/atom/{place.kind}")
        return Call(self, request, place, granted), actions[method]

    async def _answer(self, action: Action, call: Call, respond: Respond) -> None:
        try:
            response = await action(call)
        except Exception as error:
            response = self._refusal(call.request, error)
        respond(response)

    def _refusal(self, request: Request, error: Exception) -> Response:
        if isinstance(error, Failed) or not isinstance(error, OnibusError):
            _log.error("a request failed", exc_info=error)
        return _refused(request, error)


def _refused(request: Request, error: BaseException) -> Response:
    return refusal(error, request.headers.get("host", "localhost"), request.path)


def _grant(granted: Granted, place: Place, request: Request) -> None:
    """Ask for the right to manage what a request names."""
    now = time.time()
    try:
        granted.grant(RIGHT, place.resource, now)
    except Forbidden:
        if "%" not in request.path:
            raise
        # Who signs the address of a request signs it as it is sent.
        granted.grant(RIGHT, request.path.strip("/"), now)
