"""The app: reads a request by its protocol, checks its right, and calls an action."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Coroutine
from typing import Any

from onibus.bus import Bus
from onibus.core.errors import Failed, Forbidden, OnibusError
from onibus.operation.traffic import RouteKey
from onibus.protocols.http.limits import Limits
from onibus.protocols.http.messages import Request, Respond, Response
from onibus.protocols.sqs import errors, json_protocol, query_protocol, sigv4
from onibus.protocols.sqs.actions.table import ACTIONS
from onibus.protocols.sqs.call import Action, SqsCall
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.large_bodies import Escape, streamed
from onibus.protocols.sqs.md5 import Digests
from onibus.protocols.sqs.move_tasks import MoveTasks
from onibus.protocols.sqs.profile import AWS, Profile
from onibus.protocols.sqs.queues import ACCOUNT, Queues
from onibus.security.keys import AccessKey, Keyring
from onibus.security.origins import Origins
from onibus.security.rights import ALL, Granted

_log = logging.getLogger("onibus.sqs")

#: Where clients believe to be that do not say so.
REGION = "us-east-1"
#: Wrong credentials are logged once in this time, however many there are.
HINT_SECONDS = 5.0
#: Larger bodies are read on a thread, while the event loop serves other requests.
READ_HERE_BYTES = 128 << 10
#: The caller of a server that runs without keys.
_ANYBODY = Granted("", ALL)
#: The actions and the routes that they are counted under, by name and by target.
_ASKED: dict[str, tuple[str, Action, RouteKey]] = {
    name: (name, action, ("POST", f"/sqs/{name}")) for name, action in ACTIONS.items()
}
_TARGETS = {json_protocol.PREFIX + name: asked for name, asked in _ASKED.items()}


class SqsApp:
    """SQS over one bus."""

    def __init__(
        self,
        bus: Bus,
        keys: Keyring | None,
        *,
        profile: Profile = AWS,
        account: str = ACCOUNT,
        origins: Origins | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.bus = bus
        #: bytes of the messages in one receive, which always returns one
        self.answer_bytes_max = (limits or Limits()).answer_bytes_max
        self._origins = origins or Origins(keys)
        self.queues = Queues(bus, profile, account)
        #: None where the operator asks for no credentials
        self._verifier = None if keys is None else sigv4.Verifier(keys)
        self._ids = itertools.count(1)
        text = os.urandom(10).hex()
        #: what the ids of all its requests begin with
        self._id = f"{text[:8]}-{text[8:12]}-4{text[12:15]}-a{text[15:18]}"
        self._tasks: set[asyncio.Task[None]] = set()
        #: when wrong credentials were last logged
        self._hinted = 0.0
        self.move_tasks = MoveTasks(bus)
        self.digests = Digests()
        #: when queues were purged last, by incarnation
        self.purged: dict[int, int] = {}

    @property
    def profile(self) -> Profile:
        return self.queues.profile

    def __call__(self, request: Request, respond: Respond) -> None:
        if request.head.method == "GET" and query_protocol.names_no_action(request):
            respond(query_protocol.no_operation())
            return
        request_id = f"{self._id}-{next(self._ids):012x}"
        call = SqsCall(self, self.bus, self.queues, request, respond, request_id, REGION)
        try:
            now = time.time()
            self._origins.check(request.head.headers)
            if self._verifier is None:
                request.peer.know()
                call.granted, call.region = _ANYBODY, sigv4.region_of(request) or REGION
            else:
                key, call.region = self._authenticate(self._verifier, request, now)
                call.granted = Granted(key.name, key.rights, key.entity)
            if len(request.body) > READ_HERE_BYTES:
                self._start(self._act_later(call))
            else:
                self._act(call, *self._read(call))
        except Exception as error:
            self.fail(call, error)

    async def _act_later(self, call: SqsCall) -> None:
        """Do what a request asks for whose body takes long to read."""
        try:
            self._act(call, *await asyncio.to_thread(self._read, call))
        except Exception as error:
            self.fail(call, error)

    def _act(self, call: SqsCall, action: Action, given: Any) -> None:
        """Do what a request asks for, if its key may."""
        self._grant(call, action, given, time.time())
        if action.fast is not None:
            action.fast(call, given)
        else:
            assert action.slow is not None
            self._start(self._answer_with(action.slow(call, given), call))

    def _authenticate(
        self, verifier: sigv4.Verifier, request: Request, now: float
    ) -> tuple[AccessKey, str]:
        """Return the key that signed a request, and its region; count a wrong signature."""
        peer = request.peer
        peer.check_attempts()
        try:
            found = verifier.check(request, now)
        except SqsError as error:
            if error.kind in errors.WRONG_CREDENTIALS:
                peer.failed()
                self._hint(request, now)
            raise
        peer.know()
        return found

    def _hint(self, request: Request, now: float) -> None:
        """Log which keys are right, not more often than every few seconds."""
        if now - self._hinted < HINT_SECONDS or self._verifier is None:
            return
        self._hinted = now
        # Not all of it: it may be a secret that was put in the wrong place.
        start = sigv4.access_key_of(request)[:8]
        _log.warning(
            "SQS credentials rejected: access key id %r…; %s", start, self._verifier.hint()
        )

    def look(self, request: Request) -> Response | None:
        """Accept a large body only if its headers could be those of a known access key."""
        if self._verifier is not None:
            try:
                self._verifier.look(request, time.time())
            except SqsError as error:
                return self._refusal(request, error, f"{self._id}-{next(self._ids):012x}")
        return None

    def _read(self, call: SqsCall) -> tuple[Action, Any]:
        request = call.request
        target = request.head.headers.get(json_protocol.TARGET)
        if target is not None:
            asked = _TARGETS.get(target)
            if asked is None:
                name = json_protocol.action_of(target)
                raise SqsError(errors.UNKNOWN_OPERATION, f"The action {name} is not valid.")
            action = self._named(call, asked)
            return action, json_protocol.read(request.body, action.takes)
        given = query_protocol.parameters(request)
        name = query_protocol.action_of(given)
        asked = _ASKED.get(name)
        if asked is None:
            text = f"The action {name} is not valid for this endpoint."
            raise SqsError(errors.INVALID_ACTION, text)
        action = self._named(call, asked)
        return action, query_protocol.read(given, request.path, action.takes)

    def _named(self, call: SqsCall, asked: tuple[str, Action, RouteKey]) -> Action:
        """Return the action that a request names, or reject its method."""
        request = call.request
        call.action, action, request.route = asked
        if request.head.method != "POST" and not action.reads:
            self._origins.check_change(request.head.method)
        return action

    def _grant(self, call: SqsCall, action: Action, given: Any, now: float) -> None:
        """Ask for one of the rights that are enough."""
        entity, grant = action.entity(self.queues, given), call.granted.grant
        for right in action.rights[:-1]:
            try:
                grant(right, entity, now)
            except Forbidden:
                continue
            return
        grant(action.rights[-1], entity, now)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answer_later(self, call: SqsCall, work: Coroutine[Any, Any, Any]) -> None:
        """Respond with a result that takes several slices."""
        self._start(self._answer_with(work, call))

    async def _answer_with(self, work: Coroutine[Any, Any, Any], call: SqsCall) -> None:
        try:
            result = await work
        except Exception as error:
            self.fail(call, error)
        else:
            self.answer(call, result)

    def answer(self, call: SqsCall, result: Any) -> None:
        """Respond with the result of an action."""
        escape: Escape = json_protocol.escaped
        if json_protocol.TARGET in call.request.head.headers:
            response = json_protocol.write(result, call.request_id)
        elif query_protocol.wants_json(call.request):
            response = query_protocol.write_json(call.action, result, call.request_id)
        else:
            response = query_protocol.write(call.action, result, call.request_id)
            escape = query_protocol.escaped
        if call.headers:
            response.headers += call.headers
        if call.bodies:
            response = streamed(response, call.bodies, escape)
        call.respond(response)

    def fail(self, call: SqsCall, error: BaseException) -> None:
        """Respond with an error; log an internal error with all its details."""
        if isinstance(error, OnibusError) and not isinstance(error, Failed):
            error = errors.of_bus(error)
        if not isinstance(error, SqsError):
            _log.error("request failed", exc_info=error)
            error = SqsError(errors.INTERNAL, "The server failed; its log says how.")
        call.respond(self._refusal(call.request, error, call.request_id))

    def _refusal(self, request: Request, error: SqsError, request_id: str) -> Response:
        status = error.kind.status
        if error.kind is errors.ACCESS_DENIED:
            status = self.profile.denied_status
        if json_protocol.speaks(request):
            return json_protocol.write_error(error, status, request_id)
        if query_protocol.wants_json(request):
            return query_protocol.write_json_error(error, status, request_id)
        return query_protocol.write_error(error, status, request_id)
