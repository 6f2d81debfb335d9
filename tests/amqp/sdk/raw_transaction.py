"""Transactions by a raw client of AMQP: the official clients of Python have none.

Those of .NET and Java have: what is said here is what they say.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.service_bus import sections
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from onibus.security.sas import make_token
from tests.amqp.raw_client import RawClient, message, transfer
from tests.server.processes import Served

_COORDINATOR = 50


class RawTransactions:
    """A connection with a coordinator, and links to some entities."""

    def __init__(self, server: Served, *entities: str) -> None:
        self._client = RawClient(int(server.ready["amqp"].rpartition(":")[2]))
        self._ids = count(1)
        self._handles: dict[str, int] = {}
        client = self._client
        client.open()
        client.begin()
        token = make_token("sb://x/", ROOT_NAME, DEVELOPMENT_KEY, int(time.time()) + 3_600)
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
        **annotations: str,
    ) -> bool:
        """Send a message in a transaction; tell whether it was taken into it."""
        keys = {f"x-opt-{key.replace('_', '-')}": to.string(v) for key, v in annotations.items()}
        around = sections.section(sections.ANNOTATIONS, to.fields(keys)) if keys else b""
        state = say.performative(say.TRANSACTIONAL, [name, to.NULL])
        told = self._outcome(self._handles[entity], around + message(body, message_id), state)
        return bool(told.descriptor == say.TRANSACTIONAL)

    def _outcome(self, handle: int, payload: bytes, state: bytes) -> Any:
        self._client.say(transfer(handle, next(self._ids), payload, state=state))
        return self._client.expect(say.DISPOSITION)[1][4]


def _condition(told: Any) -> str:
    if told.descriptor == say.ACCEPTED:
        return ""
    assert told.descriptor == say.REJECTED
    return str(told.value[0].value[0])
