"""Receiving from a session, its state and its release (B4).

The session's lock is renewed in the background, and the locks of its messages with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from onibus.api.delivery import LockedUntil
from onibus.api.messages import bytes_of, text_of
from onibus.api.sessions import SessionState
from onibus.client.asking import post
from onibus.client.blocking.caller import Caller
from onibus.client.blocking.receiving import Settler
from onibus.client.held import RENEW_MS
from onibus.core.errors import InvalidOperation, LockLost, Unknown
from onibus.core.message import ReceivedMessage


class SessionReceiver(Settler):
    """A receiver of one session, which it holds exclusively."""

    def __init__(
        self,
        caller: Caller,
        entity: str,
        session_id: str,
        token: str,
        locked_until_ms: int,
        renew_ms: int = RENEW_MS,
    ) -> None:
        super().__init__(caller, entity, renew_ms)
        self.session_id = session_id
        self.locked_until_ms = locked_until_ms
        self._closed = False
        #: a response was lost: the session may hold messages that this receiver does not know
        self._unsure = False
        self._held = {"session_id": session_id, "token": token}
        self._renewals.add(bytes.fromhex(token), locked_until_ms)
        self._renewals.start()

    def receive(
        self, limit: int = 1, *, wait_ms: int = 0, delete: bool = False
    ) -> list[ReceivedMessage]:
        """Return the session's next messages, in order.

        If the response is lost (Unknown), the session may hold messages that this receiver does not
        know. It then delivers nothing more, so that none is skipped: close it and accept it again.
        """
        if self._unsure:
            raise InvalidOperation(
                f"a response of session {self.session_id!r} was lost, with the messages in it: "
                "close the receiver and accept the session again"
            )
        body = self._held | {"limit": limit, "delete": delete}
        try:
            return self._receive_waiting(
                self._path("sessions", "receive"), body, wait_ms, repeats=False
            )
        except Unknown:
            self._unsure = True
            raise

    def receive_deferred(self, numbers: Sequence[int]) -> list[ReceivedMessage]:
        """Return deferred messages of the session by number; if one is not found, return none."""
        body = self._held | {"numbers": list(numbers)}
        return self._receive(post(self._path("sessions", "receive-deferred"), body))

    def renew_lock(self) -> int:
        """Renew the session's lock for another lock duration; return until when it holds."""
        return self._renew_token(b"")

    def _renew_token(self, token: bytes, *, once: bool = False) -> int:
        # The session's lock is also that of its messages.
        ask = post(self._path("sessions", "renew"), self._held, once=once)
        told: LockedUntil = self._caller.ask(ask, LockedUntil)
        self.locked_until_ms = told.locked_until_ms
        return told.locked_until_ms

    def _keep(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        return messages

    def get_state(self) -> bytes | None:
        """Return the state of the session."""
        ask = post(self._path("sessions", "get-state"), self._held, changes=False)
        told: SessionState = self._caller.ask(ask, SessionState)
        return bytes_of("state", told.state, told.state_base64)

    def set_state(self, state: bytes | None) -> None:
        """Set the state of the session; None clears it."""
        text, binary = (None, None) if state is None else text_of(state)
        body = self._held | {"state": text, "state_base64": binary}
        self._caller.answer(post(self._path("sessions", "set-state"), body))

    def close(self) -> None:
        """Release the session and its messages, without counting a delivery."""
        super().close()
        if not self._closed:
            self._closed = True
            self._caller.answer(post(self._path("sessions", "close"), self._held))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except LockLost:
            # The lock has expired: there is nothing to release.
            return
