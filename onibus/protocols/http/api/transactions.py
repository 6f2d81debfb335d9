"""Transactions over HTTP: one request with all sends and settlements (B5, P8).

All of it happens atomically. It needs Send on each entity that it sends to, and Listen on each
whose messages it settles.
"""

from __future__ import annotations

from onibus.api.delivery import SettleInside, TransactionIn, TransactionOut
from onibus.api.messages import (
    message_of,
    rich_values,
    sent_out,
    token_of,
)
from onibus.core.errors import InvalidArgument
from onibus.protocols.http.route import Call, Route
from onibus.protocols.http.tracing import put_trace
from onibus.security.rights import Right
from onibus.transaction import Transaction


async def transact(call: Call) -> TransactionOut:
    given: TransactionIn = call.decode(TransactionIn)
    for send in given.sends:
        call.grant(Right.SEND, send.entity)
    for settlement in given.settlements:
        call.grant(Right.LISTEN, settlement.entity)
    if not (given.sends or given.settlements):
        raise InvalidArgument("the transaction is empty: add sends or settlements")
    transaction = call.bus.transaction()
    for send in given.sends:
        put_trace(call.request, *send.messages)
        await transaction.send_batch(send.entity, [message_of(one) for one in send.messages])
    for settlement in given.settlements:
        await _settle(transaction, settlement)
    return TransactionOut([sent_out(one) for one in await transaction.commit()])


async def _settle(transaction: Transaction, given: SettleInside) -> None:
    tokens = [token_of(one) for one in given.tokens]
    changed = None if given.properties is None else rich_values(given.properties)
    reasons = given.reason is not None or given.description is not None
    if given.delay_ms and given.verb not in ("abandon", "defer"):
        raise InvalidArgument(f"delay_ms is only for abandon and defer, not {given.verb}")
    if reasons and given.verb != "dead-letter":
        raise InvalidArgument(f"reason and description are only for dead-letter, not {given.verb}")
    if given.verb == "complete":
        if changed is not None:
            raise InvalidArgument("a completed message has no properties: omit them")
        await transaction.complete(given.entity, *tokens)
        return
    for token in tokens:
        if given.verb == "dead-letter":
            await transaction.dead_letter(
                given.entity,
                token,
                reason=given.reason,
                description=given.description,
                properties=changed,
            )
        else:
            act = transaction.abandon if given.verb == "abandon" else transaction.defer
            await act(given.entity, token, delay_ms=given.delay_ms, properties=changed)


ROUTES = [
    Route(
        method="POST",
        path="/v1/transactions",
        summary="Send and settle messages atomically.",
        right=Right.SEND,
        names_entities_inside=True,
        handler=transact,
        takes=TransactionIn,
        gives=TransactionOut,
        tag="transactions",
    ),
]
