"""Requests with safe retries; errors of the server are raised as Onibus errors."""

from __future__ import annotations

from typing import Any, Protocol

from onibus.client.asking import AnswerLost, Ask, NotSent, ServerResponse
from onibus.client.blocking.renewing import sleep
from onibus.client.problems import problem_of
from onibus.client.retrying import Attempts, Retry
from onibus.core.errors import OnibusError


class Transport(Protocol):
    """A transport for requests."""

    def ask(self, ask: Ask) -> ServerResponse: ...

    def close(self) -> None: ...


class Caller:
    """A caller of a server."""

    def __init__(self, transport: Transport, retry: Retry | None = None) -> None:
        self._transport = transport
        self._retry = retry or Retry()

    def answer(self, ask: Ask) -> ServerResponse:
        """Return the response to a request, repeated while that is safe and useful."""
        attempts = Attempts(ask, self._retry)
        while True:
            problem: OnibusError | None
            try:
                answer = self._transport.ask(ask)
                problem = problem_of(answer)
            except (NotSent, AnswerLost) as error:
                problem = error
            if problem is None:
                return answer
            sleep(attempts.failed(problem))

    def ask(self, ask: Ask, kind: Any) -> Any:
        """Return the response to a request, decoded as a type of the API."""
        return (self.answer(ask)).read(kind)
