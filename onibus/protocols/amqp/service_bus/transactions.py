"""Transactions: a coordinator declares and discharges them (specification, part 4).

A send or settlement in a bus transaction carries its id as a transactional state. Nothing happens
before the transaction is discharged without `fail`. When the connection ends, open transactions are
rolled back.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from onibus.core.errors import OnibusError, QuotaExceeded, Refused
from onibus.core.limits import TRANSACTION_COUNT_MAX
from onibus.gateway.broker import Broker
from onibus.gateway.transacting import OpenTransaction
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import Described, decode
from onibus.protocols.amqp.errors import (
    DECODE_ERROR,
    RESOURCE_LIMIT_EXCEEDED,
    AmqpError,
    DecodeError,
    LinkFailed,
)
from onibus.protocols.amqp.link import Delivery, Link, OutgoingLink
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.amqp.service_bus.awaited import Awaited
from onibus.protocols.amqp.service_bus.conditions import condition_of
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

UNKNOWN_ID = "amqp:transaction:unknown-id"
ROLLBACK = "amqp:transaction:rollback"

#: Transactions that one client has open.
OPEN_MAX = 100
#: Bytes sent in transactions that are not discharged yet.
OPEN_BYTES_MAX = 64 << 20


class Transactions:
    """The transactions of one client."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._open: dict[bytes, OpenTransaction] = {}
        self._sizes: dict[bytes, int] = {}
        #: the coordinator that declared each: they end with it
        self._declared_by: dict[bytes, CoordinatorNode] = {}

    def declare(self, coordinator: CoordinatorNode) -> bytes:
        """Open a transaction; return its id."""
        for late in [name for name, one in self._open.items() if one.has_run_out]:
            self.take(late).rollback()
        if len(self._open) >= OPEN_MAX:
            raise LinkFailed(
                RESOURCE_LIMIT_EXCEEDED,
                f"too many transactions: a connection has at most {OPEN_MAX}",
            )
        name = secrets.token_bytes(16)
        self._open[name] = OpenTransaction(self._broker, TRANSACTION_COUNT_MAX)
        self._sizes[name] = 0
        self._declared_by[name] = coordinator
        return name

    def of(self, state: Any, outcome: bytes, size: int) -> tuple[OpenTransaction, bytes]:
        """Return the bus transaction of a transactional state, and the state to respond with.

        The send or settlement adds `size` bytes, which count until the transaction is discharged.
        """
        name = _name_of(state)
        if name is None:
            raise LinkFailed(DECODE_ERROR, "not a transactional state")
        transaction = self._open.get(name)
        if transaction is None:
            raise LinkFailed(UNKNOWN_ID, "transaction not found, or already discharged")
        if sum(self._sizes.values()) + size > OPEN_BYTES_MAX:
            raise QuotaExceeded(
                f"the open transactions of the connection exceed {OPEN_BYTES_MAX} bytes: "
                "discharge them"
            )
        self._sizes[name] += size
        return transaction, say.performative(say.TRANSACTIONAL, [to.binary(name), outcome])

    def spoil(self, state: Any, error: BaseException) -> None:
        """Fail the transaction of a delivery that was rejected: the rest must not be done alone.

        A client that sends settled deliveries, or sends on without waiting, sees that at the
        discharge.
        """
        transaction = self._open.get(_name_of(state) or b"")
        if transaction is not None:
            known = isinstance(error, OnibusError | AmqpError)
            transaction.spoil(str(error) if known else "the server failed")

    def take(self, name: bytes) -> OpenTransaction:
        """Return a transaction that is about to be discharged."""
        transaction = self._open.pop(name, None)
        if transaction is None:
            raise LinkFailed(UNKNOWN_ID, "transaction not found, or already discharged")
        del self._sizes[name], self._declared_by[name]
        return transaction

    def forget(self, coordinator: CoordinatorNode) -> None:
        """Roll back the transactions of a detached coordinator. Those of others continue."""
        for name in [one for one, by in self._declared_by.items() if by is coordinator]:
            self.take(name)

    def forget_all(self) -> None:
        """Roll back all transactions: no client can discharge them any longer."""
        self._open.clear()
        self._sizes.clear()
        self._declared_by.clear()


def is_transactional(state: Any) -> bool:
    return isinstance(state, Described) and state.descriptor in (
        say.TRANSACTIONAL,
        "amqp:transactional-state:list",
    )


def _name_of(state: Any) -> bytes | None:
    value = state.value if is_transactional(state) else None
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return value[0]
    return None


class CoordinatorNode:
    """Declares and discharges."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._transactions = client.transactions

    def received(self, delivery: Delivery) -> None:
        try:
            self._do(delivery, _request(delivery.payload))
        except (OnibusError, AmqpError) as error:
            delivery.settle(_refused(error, delivery.link))

    def _do(self, delivery: Delivery, asked: Described) -> None:
        if asked.descriptor in (say.DECLARE, "amqp:declare:list"):
            name = self._transactions.declare(self)
            delivery.settle(say.performative(say.DECLARED, [to.binary(name)]))
            return
        fields = asked.value
        if (
            asked.descriptor not in (say.DISCHARGE, "amqp:discharge:list")
            or not isinstance(fields, list)
            or not fields
            or not isinstance(fields[0], bytes)
        ):
            raise LinkFailed(DECODE_ERROR, "a coordinator accepts only declare and discharge")
        transaction = self._transactions.take(fields[0])
        if len(fields) > 1 and fields[1]:
            transaction.rollback()
            delivery.settle(say.accepted())
            return

        def done(kept: KeptReply) -> None:
            error = kept.error
            delivery.settle(say.accepted() if error is None else _refused(error, delivery.link))

        Awaited(delivery.link.session.connection, done).ask(transaction.commit)

    def flowed(self, link: OutgoingLink) -> None:
        raise AssertionError("nobody receives here")

    def settled(self, link: OutgoingLink, ids: list[int], state: Any, settled: bool) -> None:
        raise AssertionError("nobody receives here")

    def detached(self, link: Link) -> None:
        """Roll back the transactions that were declared here."""
        self._transactions.forget(self)
        self._client.forget(link)


def _request(payload: bytes) -> Described:
    for code, _, value, _ in sections.split(payload):
        if code == sections.VALUE:
            asked, _ = decode(payload, value)
            if isinstance(asked, Described):
                return asked
    raise DecodeError("a coordinator accepts only declare and discharge")


def _refused(error: BaseException, link: Link) -> bytes:
    """Return that a transaction was rolled back, and why."""
    condition, description, _ = condition_of(error, link)
    if isinstance(error, Refused):
        # A transaction with an unknown outcome is not reported as rolled back.
        description = f"{condition}: {description}"
        condition = ROLLBACK
    return say.rejected(say.error(condition, description))
