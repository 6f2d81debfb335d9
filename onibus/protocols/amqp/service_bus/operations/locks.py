"""Locks of messages: renewing them, and settling without the link that delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onibus.core.commands import COMPLETE, Settlement
from onibus.core.errors import InvalidArgument
from onibus.gateway import settling
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus.operations.operation import Operation, tokens_of
from onibus.protocols.amqp.service_bus.requests import Request
from onibus.protocols.amqp.service_bus.settlement import properties_of
from onibus.security.rights import Right
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.management import ManagementNode


def renew_locks(node: ManagementNode, request: Request) -> None:
    """Renew locks for another lock duration each."""
    tokens = tokens_of(request)
    _on_each(
        node,
        request,
        lambda reply: settling.renew_each(node.broker, node.place.entity, tokens, reply),
        lambda moments: to.text_map({"expirations": to.timestamps(moments)}),
    )


def _on_each(
    node: ManagementNode,
    request: Request,
    command: Callable[[KeptReply], None],
    told: Callable[[list[Any]], bytes],
) -> None:
    """Give the broker a command with a result per token; the first rejection fails the request."""

    def done(kept: KeptReply) -> None:
        results = [] if kept.error is not None else kept.value
        rejected = [one for one in results if isinstance(one, BaseException)]
        error = kept.error or (rejected[0] if rejected else None)
        if error is not None:
            node.fail(request, error)
        else:
            node.say(request, 200, body=told(results))

    node.awaited(request, done).ask(command)


def update_disposition(node: ManagementNode, request: Request) -> None:
    """Settle messages by their tokens, if the session that the request names is the client's.

    The holder of a session that was taken over settles what its first receiver got (B9).
    """
    tokens = tokens_of(request)
    status = request.argument("disposition-status", str)
    session = node.session_held(request)
    transaction = node.transaction_of(request)
    if transaction is not None:
        settlement = _settlement(request, status)
        transaction.settle(node.place.entity, tokens, settlement, session)
        node.say(request, 200)
        return
    settlement = _settlement(request, status)
    if settlement is COMPLETE:
        node.ask(
            request,
            lambda reply: settling.settle_all(
                node.broker, node.place.entity, tokens, settlement, reply, session
            ),
        )
        return
    _on_each(
        node,
        request,
        lambda reply: settling.settle_each(
            node.broker, node.place.entity, tokens, settlement, reply, session
        ),
        lambda results: b"",
    )


def _settlement(request: Request, status: str) -> Settlement:
    if status == "completed":
        return COMPLETE
    properties = properties_of(request.body.get("properties-to-modify"))
    if status == "abandoned":
        return Settlement("abandon", properties=properties)
    if status in ("defered", "deferred"):
        return Settlement("defer", properties=properties)
    if status == "suspended":
        return Settlement(
            "dead-letter",
            reason=request.body.get("deadletter-reason"),
            description=request.body.get("deadletter-description"),
            properties=properties,
        )
    raise InvalidArgument(f"unknown disposition-status {status!r}")


OPERATIONS = {
    "com.microsoft:renew-lock": Operation(Right.LISTEN, renew_locks),
    "com.microsoft:update-disposition": Operation(Right.LISTEN, update_disposition, True),
}
