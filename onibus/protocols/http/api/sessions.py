"""Sessions over HTTP: lock one, receive from it, read and set its state, release it (B4).

The response to accepting a session has a token, which all other calls about the session carry with
its id. Messages of a session are settled like any other.
"""

from __future__ import annotations

from base64 import b64encode
from operator import attrgetter
from typing import Any

from onibus.api.delivery import LockedUntil
from onibus.api.messages import (
    Messages,
    bytes_of,
    text_of,
    token_of,
)
from onibus.api.sessions import (
    AcceptedOut,
    AcceptSession,
    ReceiveSession,
    ReceiveSessionDeferred,
    SessionHeld,
    SessionOut,
    Sessions,
    SessionsQuery,
    SessionState,
    SetSessionState,
)
from onibus.core.commands import HeldSession
from onibus.core.inspection import AcceptedSession, SessionInfo
from onibus.directory.routing import partition_of_token
from onibus.gateway import receiving, searching, settling
from onibus.protocols.http.api.searching import in_slices
from onibus.protocols.http.listing import messages_out
from onibus.protocols.http.messages import Response
from onibus.protocols.http.route import Call, Route
from onibus.receiver import SessionReceiver
from onibus.security.rights import Right


def accept(call: Call) -> None:
    """Lock a session: a named one at once, or the next available."""
    given: AcceptSession = call.decode(AcceptSession)

    def told(result: Any) -> AcceptedOut:
        accepted: AcceptedSession = result[2]
        return AcceptedOut(accepted.session_id, accepted.token.hex(), accepted.locked_until_ms)

    call.ask(
        lambda reply: receiving.accept(
            call.bus.broker, call.entity, given.session_id, given.owner, given.wait_ms, reply
        ),
        told,
    )


def receive(call: Call) -> None:
    """Receive the next messages of a session, in order."""
    given: ReceiveSession = call.decode(ReceiveSession)
    entity = call.bus.broker.find(call.entity)
    token = token_of(given.token)
    call.ask(
        lambda reply: receiving.receive_session(
            call.bus.broker,
            entity,
            partition_of_token(entity, token),
            HeldSession(given.session_id, token),
            given.limit,
            given.wait_ms,
            reply,
            take=given.delete,
            bytes_max=call.app.limits.answer_bytes_max,
        ),
        messages_out,
    )


def receive_deferred(call: Call) -> None:
    given: ReceiveSessionDeferred = call.decode(ReceiveSessionDeferred)
    call.ask(
        lambda reply: settling.receive_deferred(
            call.bus.broker,
            call.entity,
            given.numbers,
            reply,
            session=HeldSession(given.session_id, token_of(given.token)),
            bytes_max=call.app.limits.answer_bytes_max,
        ),
        messages_out,
    )


async def renew(call: Call) -> LockedUntil:
    return LockedUntil(await _receiver(call, call.decode(SessionHeld)).renew_lock())


async def get_state(call: Call) -> SessionState:
    state = await _receiver(call, call.decode(SessionHeld)).get_state()
    return SessionState() if state is None else SessionState(*text_of(state))


async def set_state(call: Call) -> None:
    given: SetSessionState = call.decode(SetSessionState)
    state = bytes_of("state", given.state, given.state_base64)
    await _receiver(call, given).set_state(state)


async def close(call: Call) -> None:
    await _receiver(call, call.decode(SessionHeld)).close()


async def list_sessions(call: Call) -> Response:
    """List sessions in slices: an entity can have a million."""
    asked: SessionsQuery = call.query(SessionsQuery)
    steps = searching.list_sessions(call.bus.broker, call.entity, asked.search.lower(), asked.limit)
    found = await in_slices(steps)

    def listed(infos: list[SessionInfo]) -> Sessions:
        if asked.limit is None:
            infos = sorted(infos, key=attrgetter("session_id"))
        return Sessions([_session_out(info) for info in infos], found.count)

    return await call.encode(listed, found.sessions)


def _receiver(call: Call, held: SessionHeld) -> SessionReceiver:
    """Return a session that an earlier request accepted."""
    call.bus.check_alive()
    entity = call.bus.broker.find(call.entity)
    token = token_of(held.token)
    accepted = AcceptedSession(held.session_id, token, 0)
    return SessionReceiver(call.bus, entity, partition_of_token(entity, token), accepted)


def _session_out(info: SessionInfo) -> SessionOut:
    return SessionOut(
        session_id=info.session_id,
        ready_count=info.ready_count,
        held_count=info.held_count,
        oldest_enqueued_time_ms=info.oldest_enqueued_time_ms,
        locked_until_ms=info.locked_until_ms,
        lock_holder=info.lock_holder,
        state_base64=None if info.state is None else b64encode(info.state).decode(),
    )


def _route(path: str, summary: str, takes: Any, gives: Any = None, **more: Any) -> Route:
    return Route(
        method="GET" if takes is None else "POST",
        path=f"/v1/entities/{{entity}}/sessions{path}",
        summary=summary,
        right=Right.LISTEN,
        takes=takes,
        gives=gives,
        tag="sessions",
        **more,
    )


ROUTES = [
    _route(
        "",
        "List sessions with counts, oldest age, lock holder and state.",
        None,
        Sessions,
        handler=list_sessions,
        query=SessionsQuery,
    ),
    _route(
        "/accept",
        "Accept a named session, or the next available one.",
        AcceptSession,
        AcceptedOut,
        fast=accept,
    ),
    _route(
        "/receive",
        "Receive the next messages of a locked session.",
        ReceiveSession,
        Messages,
        fast=receive,
    ),
    _route(
        "/receive-deferred",
        "Receive deferred messages of a session by their sequence numbers, atomically.",
        ReceiveSessionDeferred,
        Messages,
        fast=receive_deferred,
    ),
    _route(
        "/renew",
        "Renew the lock of a session.",
        SessionHeld,
        LockedUntil,
        handler=renew,
    ),
    _route(
        "/get-state",
        "Get the state of a session.",
        SessionHeld,
        SessionState,
        handler=get_state,
    ),
    _route("/set-state", "Set the state of a session.", SetSessionState, handler=set_state),
    _route(
        "/close",
        "Release a session without counting a delivery.",
        SessionHeld,
        handler=close,
    ),
]
