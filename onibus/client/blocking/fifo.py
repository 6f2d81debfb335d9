"""Receiving from a FIFO queue, with SQS semantics (F9, F10)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from onibus.api.delivery import LockedUntil
from onibus.client.asking import post, without_none
from onibus.client.blocking.caller import Caller
from onibus.client.blocking.receiving import Settler
from onibus.client.convert import token_text
from onibus.core.message import ReceivedMessage


class FifoReceiver(Settler):
    """A receiver of a FIFO queue, group by group (F9, F10)."""

    def __init__(self, caller: Caller, entity: str) -> None:
        # Receivers of a FIFO queue set the visibility timeout themselves.
        super().__init__(caller, entity, 0)
        #: the attempt id of the last receive, given or generated
        self.attempt_id = ""

    def receive(
        self,
        limit: int = 1,
        *,
        wait_ms: int = 0,
        visibility_ms: int | None = None,
        attempt_id: str | None = None,
    ) -> list[ReceivedMessage]:
        """Return messages of groups without a message in flight.

        The same attempt id returns the same messages again while they are in flight. So a receive
        whose response was lost can be repeated at once.
        """
        self.attempt_id = uuid4().hex if attempt_id is None else attempt_id
        body = without_none(limit=limit, visibility_ms=visibility_ms, attempt_id=self.attempt_id)
        path = self._path("fifo", "receive")
        return self._receive_waiting(path, body, wait_ms, repeats=True)

    def receive_deferred(self, numbers: Sequence[int]) -> list[ReceivedMessage]:
        """Return deferred messages by sequence number; if one is not found, return none."""
        return self._receive(post(self._path("receive-deferred"), {"numbers": list(numbers)}))

    def change_visibility(self, message: ReceivedMessage | bytes, visibility_ms: int) -> int:
        """Keep a message in flight for this long from now; 0 makes it visible."""
        body = {"token": token_text(message), "visibility_ms": visibility_ms}
        told: LockedUntil = self._caller.ask(
            post(self._path("fifo", "visibility"), body), LockedUntil
        )
        return told.locked_until_ms
