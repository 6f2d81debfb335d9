"""The app: resolves a path, checks the right to manage its entity, and calls an action."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from onibus.bus import Bus
from onibus.core.errors import Failed, Forbidden, OnibusError, Unauthorized
from onibus.protocols.atom import entities, namespace, paths, rule_calls, runtime
from onibus.protocols.atom.call import AtomCall
from onibus.protocols.atom.documents import FEED, answer, moment, public_feed
from onibus.protocols.atom.errors import RUNTIME_STATUSES, NoSuchMethod, refusal
from onibus.protocols.atom.paths import Resource, place_of
from onibus.protocols.atom.xml import BODY_BYTES_MAX
from onibus.protocols.http.messages import Request, Respond, Response
from onibus.protocols.http.problems import BodyTooLarge
from onibus.protocols.service_bus_profile import RELAXED, Profile
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import Keyring
from onibus.security.origins import Origins
from onibus.security.rights import ALL, Granted, Right

_log = logging.getLogger("onibus.atom")

Action = Callable[[AtomCall], Awaitable[Response]]

#: What a request needs on what its path names: sending and receiving less than managing.
RIGHTS = {
    paths.MESSAGES: Right.SEND,
    paths.FIRST_MESSAGE: Right.LISTEN,
    paths.LOCKED_MESSAGE: Right.LISTEN,
}
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
    paths.MESSAGES: {"POST": runtime.send},
    paths.FIRST_MESSAGE: {"POST": runtime.peek_lock, "DELETE": runtime.receive_and_delete},
    paths.LOCKED_MESSAGE: {
        "DELETE": runtime.complete,
        "PUT": runtime.unlock,
        "POST": runtime.renew_lock,
    },
}


def right_of(kind: str) -> Right:
    """Return the right that a request about this kind of thing needs."""
    return RIGHTS.get(kind, Right.MANAGE)


class AtomApp:
    """Management of one bus as Service Bus has it."""

    def __init__(
        self,
        bus: Bus,
        keys: KeptKeys | Keyring | None,
        origins: Origins | None = None,
        profile: Profile = RELAXED,
    ) -> None:
        self.bus = bus
        self.profile = profile
        self.kept_keys = keys if isinstance(keys, KeptKeys) else None
        #: None where the operator asks for no credentials
        self._keys = keys.keyring if isinstance(keys, KeptKeys) else keys
        self._origins = origins or Origins(self._keys)
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def means(request: Request) -> bool:
        """Return whether a request is one of these.

        Its query names a version, its path names messages, or the root is read.
        """
        if "api-version=" in request.head.query_text or _reads_root(request):
            return True
        return paths.messages_at(request.path, request.method) is not None

    def __call__(self, request: Request, respond: Respond) -> None:
        if _reads_root(request):
            request.route = ("GET", "/")
            if request.accepts("text/html"):
                # A browser: people read the console, not the feed.
                respond(Response(302, headers=(("location", "/console/"),)))
                return
            respond(answer(public_feed(moment(self.bus.broker.clock.wall())), FEED))
            return
        try:
            call, action = self._call(request)
        except Exception as error:
            respond(self._refusal(request, error))
            return
        task = asyncio.get_running_loop().create_task(self._answer(action, call, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def look(self, request: Request) -> Response | None:
        """Reject a body that is too large to be a description, unless it is a message."""
        if paths.messages_at(request.path, request.method) is not None:
            try:
                self._call(request)
            except Exception as error:
                return self._refusal(request, error)
            return None
        return _refused(
            request, BodyTooLarge(f"the body is too large: at most {BODY_BYTES_MAX} bytes")
        )

    def known(self, request: Request, credentials: str | None) -> Granted:
        """Return what the credentials of a request allow, or reject them."""
        if self._keys is None:
            request.peer.know()
            return Granted("", ALL)
        if credentials is None:
            raise Unauthorized("send a shared access signature in the Authorization header")
        return request.peer.authenticate(self._keys, credentials, time.time())

    def _call(self, request: Request) -> tuple[AtomCall, Action]:
        self._origins.check(request.headers)
        granted = self.known(request, request.headers.get("authorization"))
        place = place_of(request.path, request.method)
        _grant(granted, place, request)
        actions = ACTIONS[place.kind]
        method = "GET" if request.method == "HEAD" else request.method
        if method not in actions:
            raise NoSuchMethod(f"method not allowed: use {', '.join(actions)}")
        request.route = (method, f"/atom/{place.kind}")
        return AtomCall(self, request, place, granted), actions[method]

    async def _answer(self, action: Action, call: AtomCall, respond: Respond) -> None:
        try:
            response = await action(call)
        except Exception as error:
            response = self._refusal(call.request, error)
        respond(response)

    def _refusal(self, request: Request, error: Exception) -> Response:
        if isinstance(error, Failed) or not isinstance(error, OnibusError):
            _log.error("request failed", exc_info=error)
        return _refused(request, error)


def _reads_root(request: Request) -> bool:
    return request.path == "/" and request.method in ("GET", "HEAD")


def _refused(request: Request, error: BaseException) -> Response:
    host = request.headers.get("host", "localhost")
    if paths.messages_at(request.path, request.method) is not None:
        return refusal(error, host, request.path, RUNTIME_STATUSES)
    return refusal(error, host, request.path)


def _grant(granted: Granted, place: Resource, request: Request) -> None:
    """Ask for the right to what a request names."""
    now = time.time()
    try:
        granted.grant(right_of(place.kind), place.resource, now)
    except Forbidden:
        if "%" not in request.path and place.kind not in RIGHTS:
            raise
        # A client signs the address of a request as it sends it.
        granted.grant(right_of(place.kind), request.path.strip("/"), now)
