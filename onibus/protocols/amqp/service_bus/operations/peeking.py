"""Looking at messages, and deleting many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.inspection import Filter
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.core.message import ReceivedMessage
from onibus.gateway import settling
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.operations.operation import Operation, session_of
from onibus.protocols.amqp.service_bus.requests import Request
from onibus.security.rights import Right
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.management import ManagementNode

NO_CONTENT = 204


def peek(node: ManagementNode, request: Request) -> None:
    """Show messages from a number on."""
    start = max(request.argument("from-sequence-number", int), 0)
    limit = min(max(request.argument("message-count", int), 1), BATCH_COUNT_MAX)
    wanted = Filter(session_id=session_of(request))

    def found(kept: KeptReply) -> None:
        if kept.error is not None:
            node.fail(request, kept.error)
        else:
            _show(node, request, kept.value)

    if node.place.transfer:
        _show(node, request, [])
        return
    node.awaited(request, found).ask(
        lambda reply: settling.peek_in_slices(
            node.broker, node.place.entity, start, limit, wanted, node.place.dead, reply
        )
    )


def _show(node: ManagementNode, request: Request, found: list[ReceivedMessage]) -> None:
    if not found:
        node.say(request, NO_CONTENT, "No messages", to.text_map({"messages": to.list_([])}))
        return
    for one in found:
        # A peek shows the state that decides what can be done with a message (S7).
        one.was_scheduled = False
    written = map(node.write, found)
    if request.body.get("omit-message-body") is True:
        written = map(_without_body, written)
    messages = [to.text_map({"message": to.binary(one)}) for one in written]
    node.say(request, 200, body=to.text_map({"messages": to.list_(messages)}))


def _without_body(message: bytes) -> bytes:
    """Return a message that tells the size of its body in place of it."""
    header, *others = sections.split(message)
    kept, size = [], 0
    told: list[bytes] = []
    for code, start, value, end in others:
        if code in (sections.DATA, sections.SEQUENCE, sections.VALUE):
            size += end - start
        elif code == sections.DELIVERY_ANNOTATIONS:
            told = sections.elements(message, value)
        else:
            kept.append(message[start:end])
    told += (to.symbol("omitted-message-body-size"), to.long(size))
    annotations = sections.section(sections.DELIVERY_ANNOTATIONS, to.map_(told))
    return b"".join((message[: header[3]], annotations, *kept))


def delete_batch(node: ManagementNode, request: Request) -> None:
    """Delete up to `message-count` of the oldest active messages enqueued before a time.

    Only the receiver that holds a message session deletes its messages.
    """
    count = min(max(request.argument("message-count", int), 1), BATCH_COUNT_MAX)
    before = request.argument("enqueued-time-utc", int)
    if node.place.transfer:
        node.say(request, 200, body=_deleted(0))
        return
    session = session_of(request)
    if session is not None:
        node.held_session(request, session)
    state = "dead-lettered" if node.place.dead else "active"
    wanted = Filter(state=state, enqueued_before_ms=int(before), session_id=session)
    node.ask(
        request,
        lambda reply: settling.purge_all(
            node.broker, node.place.entity, wanted, False, reply, most=count
        ),
        _deleted,
    )


def _deleted(count: int) -> bytes:
    return to.text_map({"message-count": to.int_(count)})


OPERATIONS = {
    "com.microsoft:peek-message": Operation(Right.LISTEN, peek),
    "com.microsoft:batch-delete-messages": Operation(Right.LISTEN, delete_batch),
}
