"""Sessions: their locks, their state, and which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import (
    GetSessionState,
    ListSessions,
    ListSessionStates,
    RenewSession,
    SetSessionState,
)
from onibus.core.errors import InvalidArgument
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus.operations.operation import Operation, session_of
from onibus.protocols.amqp.service_bus.operations.peeking import NO_CONTENT
from onibus.protocols.amqp.service_bus.requests import Request
from onibus.security.rights import Right

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.management import ManagementNode
    from onibus.protocols.amqp.service_bus.session_receiver import SessionReceiverNode

#: By a time that never comes clients ask for all.
_ANY_TIME_MS = 253_402_300_799_000
#: Message sessions in one response.
_TOP_MAX = 1_000
#: No entity has more sessions; the next position to skip to fits an AMQP int.
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
        lambda reply: held.on_session(RenewSession(held.number, held.held), reply),
        lambda until: to.text_map({"expiration": to.timestamp(until)}),
    )


def set_state(node: ManagementNode, request: Request) -> None:
    """Keep bytes with a session; null clears them."""
    held = _held(node, request)
    command = SetSessionState(held.number, held.held, request.body.get("session-state"))
    node.ask(request, lambda reply: held.on_session(command, reply))


def get_state(node: ManagementNode, request: Request) -> None:
    """Tell the bytes that are kept with a session."""
    held = _held(node, request)
    state = held.look(GetSessionState(held.number, held.held))
    node.say(request, 200, body=to.text_map({"session-state": to.binary(state)}))


def list_all(node: ManagementNode, request: Request) -> None:
    """Name the sessions that have messages or a state, or whose state was set since a time."""
    since = request.body.get("last-updated-time") if isinstance(request.body, dict) else None
    skip = min(max(request.argument("skip", int), 0), _SKIP_MAX)
    top = min(max(request.argument("top", int), 1), _TOP_MAX)
    entity = node.broker.find(node.place.entity)

    names: list[str] = []
    for partition in entity.online_partitions():
        if isinstance(since, int) and since < _ANY_TIME_MS:
            command = ListSessionStates(entity.number, since)
            names.extend(node.broker.use(entity, partition, command))
        else:
            listed = node.broker.use(entity, partition, ListSessions(entity.number))
            names += [
                info.session_id
                for info in listed
                if info.state is not None or info.ready_count + info.held_count > 0
            ]
    names.sort()
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
