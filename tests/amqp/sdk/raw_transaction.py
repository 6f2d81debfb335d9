"""Transactions by a raw client of AMQP: the official clients of Python have none.

Those of .NET and Java have: what is said here is what they say.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import decode
from onibus.protocols.amqp.service_bus import sections
from onibus.security.keys import ROOT_NAME
from onibus.security.sas import make_token
from tests.amqp.raw_client import RawClient, transfer
from tests.server.processes import Served

_COORDINATOR = 50


class RawTransactions:
    """A connection with a coordinator, and links to some entities."""

    def __init__(self, server: Served, *entities: str) -> None:
        self._client = RawClient(int(server.ready["amqp"].rpartition(":")[2]))
        self._ids = count(1)
        self._links = count(60)
        self._handles: dict[str, int] = {}
        client = self._client
        client.open()
        client.begin()
        token = make_token("sb://x/", ROOT_NAME, server.root_key, int(time.time()) + 3_600)
        assert client.put_token("sb://x/", token) == 202
        coordinator = say.performative(say.COORDINATOR, [])
        client.attach(_COORDINATOR, say.SENDER, "me", "", terminus=coordinator)
        for handle, entity in enumerate(entities):
            client.attach(handle, say.SENDER, "me", entity)
            self._handles[entity] = handle

    def __enter__(self) -> RawTransactions:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def accept(self, queue: str, wanted: bytes, name: str) -> int:
        """Attach a receiver of a session with a filter; return its handle."""
        handle = next(self._links)
        filters = to.fields({name: wanted})
        source = say.performative(say.SOURCE, [to.string(queue), *[to.NULL] * 6, filters])
        self._client.attach(handle, say.RECEIVER, queue, "me", from_=source)
        return handle

    def detach(self, handle: int) -> None:
        """Close a link."""
        self._client.say(say.performative(say.DETACH, [to.uint(handle), to.boolean(True)]))
        self._client.expect(say.DETACH)

    def declare(self) -> bytes:
        """Open a transaction; return its id, encoded."""
        told = self._coordinate(say.performative(say.DECLARE, [to.NULL]))
        assert told.descriptor == say.DECLARED
        return to.binary(told.value[0])

    def discharge(self, name: bytes, *, fail: bool = False) -> str:
        """Commit a transaction, or roll it back; return the condition if that is refused."""
        told = self._coordinate(say.performative(say.DISCHARGE, [name, to.boolean(fail)]))
        return _condition(told)

    def _coordinate(self, asked: bytes) -> Any:
        return self._outcome(_COORDINATOR, sections.section(sections.VALUE, asked), to.NULL)

    def send(
        self,
        entity: str,
        name: bytes,
        body: bytes,
        message_id: str | None = None,
        *,
        partition_key: str | None = None,
        session_id: str | None = None,
    ) -> bool:
        """Send a message in a transaction; tell whether it was taken into it."""
        payload = sections.section(sections.PROPERTIES, _properties(message_id, session_id))
        if partition_key is not None:
            key = to.fields({"x-opt-partition-key": to.string(partition_key)})
            payload = sections.section(sections.ANNOTATIONS, key) + payload
        payload += sections.data_section(body)
        told = self._outcome(self._handles[entity], payload, _in(name))
        return bool(told.descriptor == say.TRANSACTIONAL)

    def receive(self, entity: str, wanted: int) -> list[int]:
        """Receive messages under locks; return the ids of their deliveries."""
        handle = next(self._links)
        self._client.attach(handle, say.RECEIVER, entity, "me", rcv=1)
        self._client.flow(handle, wanted)
        return [self._client.expect(say.TRANSFER)[1][1] for _ in range(wanted)]

    def settle(self, name: bytes, delivery: int, outcome: bytes) -> bool:
        """Settle what was received in a transaction; tell whether that was taken into it."""
        state = say.performative(say.TRANSACTIONAL, [name, outcome])
        fields = [to.boolean(say.RECEIVER), to.uint(delivery), to.NULL, to.boolean(False), state]
        self._client.say(say.performative(say.DISPOSITION, fields))
        told = self._told(say.SENDER, delivery)
        return bool(told.descriptor == say.TRANSACTIONAL)

    def request(self, entity: str, operation: str, name: bytes) -> int:
        """Ask for something about an entity in a transaction; return the status."""
        client, address = self._client, f"{entity}/$management"
        answers, asks = next(self._links), next(self._links)
        client.attach(answers, say.RECEIVER, address, "me")
        client.attach(asks, say.SENDER, "me", address)
        client.flow(answers, 10)
        named = to.text_map({"operation": to.string(f"com.microsoft:{operation}")})
        payload = sections.section(sections.APPLICATION_PROPERTIES, named)
        payload += sections.section(sections.VALUE, to.text_map({"rule-name": to.string("r")}))
        client.say(transfer(asks, next(self._ids), payload, state=_in(name)))
        answer = client.expect(say.TRANSFER)[2]
        found = {code: value for code, _, value, _ in sections.split(answer)}
        told, _ = decode(answer, found[sections.APPLICATION_PROPERTIES])
        return int(told["statusCode"])

    def _outcome(self, handle: int, payload: bytes, state: bytes) -> Any:
        delivery = next(self._ids)
        self._client.say(transfer(handle, delivery, payload, state=state))
        return self._told(say.RECEIVER, delivery)

    def _told(self, role: bool, delivery: int) -> Any:
        """Wait for what the server says of a delivery, which it received or sent."""
        while True:
            by, first, last, _, told, *_ = self._client.expect(say.DISPOSITION)[1]
            if by == role and first <= delivery <= (first if last is None else last):
                return told


def _in(name: bytes) -> bytes:
    return say.performative(say.TRANSACTIONAL, [name, to.NULL])


def _properties(message_id: str | None, session_id: str | None) -> bytes:
    """Return the properties of a message: the id is the first of them, the session the 11th."""
    given = [to.NULL if one is None else to.string(one) for one in (message_id, session_id)]
    return to.list_([given[0], *[to.NULL] * 9, given[1]])


def _condition(told: Any) -> str:
    if told.descriptor == say.ACCEPTED:
        return ""
    assert told.descriptor == say.REJECTED
    return str(told.value[0].value[0])
