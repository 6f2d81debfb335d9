"""Sessions: their locks, their state, and which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.errors import InvalidArgument
from onibus.core.path.session import (
    held_session,
    list_sessions,
    renew_session,
    set_session_state,
    states_set_since,
)
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus.operations.operation import Operation, session_of
from onibus.protocols.amqp.service_bus.operations.peeking import NO_CONTENT
from onibus.protocols.amqp.service_bus.requests import Request
from onibus.security.rights import Right

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription
    from onibus.protocols.amqp.service_bus.management import ManagementNode
    from onibus.protocols.amqp.service_bus.session_receiver import SessionReceiverNode

#: By a time that never comes clients ask for all.
_ANY_TIME_MS = 253_402_300_799_000
#: Sessions in one answer.
_TOP_MAX = 1_000
#: Nothing has so many; what is told next fits an int of AMQP.
_SKIP_MAX = 1 << 30


def _held(node: ManagementNode, request: Request) -> SessionReceiverNode:
    session_id = session_of(request)
    if session_id is None:
        raise InvalidArgument(f"{request.operation}: session-id is missing")
    return node.held_session(request, session_id)


def renew_lock(node: ManagementNode, request: Request) -> None:
    """Hold a session for another lock duration."""
    held = _held(node, request)
    node.ask(
        request,
        lambda reply: held.on_session(renew_session, reply),
        lambda until: to.text_map({"expiration": to.timestamp(until)}),
    )


def set_state(node: ManagementNode, request: Request) -> None:
    """Keep bytes with a session; null clears them."""
    held = _held(node, request)
    state = request.body.get("session-state")
    node.ask(
        request,
        lambda reply: held.on_session(
            lambda part, session, now, out: set_session_state(part, session, state, now, out),
            reply,
            state if isinstance(state, bytes) else None,
        ),
    )


def get_state(node: ManagementNode, request: Request) -> None:
    """Tell the bytes that are kept with a session."""
    held = _held(node, request)
    accepted = held.accepted
    assert accepted is not None
    state = held.look(lambda part: held_session(part, accepted.session_id, accepted.token).state)
    node.say(request, 200, body=to.text_map({"session-state": to.binary(state)}))


def list_all(node: ManagementNode, request: Request) -> None:
    """Name the sessions that have messages or a state, or whose state was set since a time."""
    since = request.body.get("last-updated-time") if isinstance(request.body, dict) else None
    skip = min(max(request.argument("skip", int), 0), _SKIP_MAX)
    top = min(max(request.argument("top", int), 1), _TOP_MAX)
    entity = node.broker.find(node.place.entity)

    def named(part: Subscription) -> list[str]:
        if isinstance(since, int) and since < _ANY_TIME_MS:
            return states_set_since(part, since)
        return [
            info.session_id
            for info in list_sessions(part)
            if info.state is not None or info.ready_count + info.held_count > 0
        ]

    seats = [seat for seat in entity.seats if seat.partition is not None]
    names = sorted(name for seat in seats for name in node.broker.look(entity, seat, named))
    chosen = names[skip : skip + top]
    body = to.text_map(
        {
            "skip": to.int_(skip + len(chosen)),
            "sessions-ids": to.list_([to.string(name) for name in chosen]),
        }
    )
    if chosen:
        node.say(request, 200, body=body)
    else:
        node.say(request, NO_CONTENT, "No sessions", body)


OPERATIONS = {
    "com.microsoft:renew-session-lock": Operation(Right.LISTEN, renew_lock),
    "com.microsoft:set-session-state": Operation(Right.LISTEN, set_state),
    "com.microsoft:get-session-state": Operation(Right.LISTEN, get_state),
    "com.microsoft:get-message-sessions": Operation(Right.LISTEN, list_all),
}
