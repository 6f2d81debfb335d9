"""Locks of messages: renewing them, and settling without the link that delivered."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from onibus.broker import settling
from onibus.broker.replies import Outcome
from onibus.broker.settling import Held
from onibus.broker.transacting import verb
from onibus.core.errors import InvalidArgument
from onibus.core.path.settle import renew
from onibus.core.staged import Change
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus.operations.operation import Operation, tokens_of
from onibus.protocols.amqp.service_bus.requests import Request
from onibus.protocols.amqp.service_bus.settlement import act_of, properties_of
from onibus.security.rights import Right

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.management import ManagementNode


class _Gathered:
    """Answers a request when all its parts have been answered; the first error decides."""

    def __init__(self, node: ManagementNode, request: Request, count: int, told: Any) -> None:
        self._node = node
        self._request = request
        self._results: list[Any] = [None] * count
        self._left = count
        self._told = told
        self._failed = False

    def part(self, at: int, outcome: Outcome) -> None:
        if self._failed:
            return
        if outcome.error is not None:
            self._failed = True
            self._node.fail(self._request, outcome.error)
            return
        self._results[at] = outcome.value
        self._left -= 1
        if not self._left:
            self._node.say(self._request, 200, body=self._told(self._results))


def renew_locks(node: ManagementNode, request: Request) -> None:
    """Hold messages for another lock duration."""
    _on_each(node, request, tokens_of(request), _renew, _expirations, None)


def _renew(token: bytes) -> Any:
    return lambda part, now, out: renew(part, token, now, out)


def _expirations(moments: list[Any]) -> bytes:
    return to.text_map({"expirations": to.timestamps(moments)})


def _on_each(
    node: ManagementNode,
    request: Request,
    tokens: list[bytes],
    act: Any,
    told: Any,
    session: Held | None,
) -> None:
    gathered = _Gathered(node, request, len(tokens), told)
    for at, token in enumerate(tokens):
        reply = node.awaited(request, partial(gathered.part, at))
        try:
            settling.settle_one(node.broker, node.place.entity, token, act(token), reply, session)
        except Exception as error:
            reply.set_exception(error)
            return


def update_disposition(node: ManagementNode, request: Request) -> None:
    """Settle messages by their tokens, if the session that the request names is the client's.

    The holder of a session that was taken over settles what its first receiver got (B9).
    """
    tokens = tokens_of(request)
    status = request.argument("disposition-status", str)
    session = node.session_held(request)
    transaction = node.transaction_of(request)
    if transaction is not None:
        change = verb("complete") if status == "completed" else _change(request, status)
        transaction.settle(node.place.entity, tokens, change, session)
        node.say(request, 200)
        return
    if status == "completed":
        node.ask(
            request,
            lambda reply: settling.complete_all(
                node.broker, node.place.entity, tokens, reply, session
            ),
        )
        return
    change = _change(request, status)
    _on_each(
        node, request, tokens, lambda token: act_of(token, change), lambda results: b"", session
    )


def _change(request: Request, status: str) -> Change:
    properties = properties_of(request.body.get("properties-to-modify"))
    if status == "abandoned":
        return verb("abandon", properties=properties)
    if status in ("defered", "deferred"):
        return verb("defer", properties=properties)
    if status == "suspended":
        reason = request.body.get("deadletter-reason")
        description = request.body.get("deadletter-description")
        return verb("dead-letter", reason=reason, description=description, properties=properties)
    raise InvalidArgument(f"unknown disposition-status {status!r}")


OPERATIONS = {
    "com.microsoft:renew-lock": Operation(Right.LISTEN, renew_locks),
    "com.microsoft:update-disposition": Operation(Right.LISTEN, update_disposition, True),
}
