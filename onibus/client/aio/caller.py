"""Requests with safe retries; errors of the server are raised as Onibus errors."""

from __future__ import annotations

from typing import Any, Protocol

from onibus.client.aio.renewing import sleep
from onibus.client.asking import AnswerLost, Ask, NotSent, ServerResponse
from onibus.client.problems import problem_of
from onibus.client.retrying import Attempts, Retry
from onibus.core.errors import OnibusError


class AsyncTransport(Protocol):
    """A transport for requests."""

    async def ask(self, ask: Ask) -> ServerResponse: ...

    async def close(self) -> None: ...


class AsyncCaller:
    """A caller of a server."""

    def __init__(self, transport: AsyncTransport, retry: Retry | None = None) -> None:
        self._transport = transport
        self._retry = retry or Retry()

    async def answer(self, ask: Ask) -> ServerResponse:
        """Return the response to a request, repeated while that is safe and useful."""
        attempts = Attempts(ask, self._retry)
        while True:
            problem: OnibusError | None
            try:
                answer = await self._transport.ask(ask)
                problem = problem_of(answer)
            except (NotSent, AnswerLost) as error:
                problem = error
            if problem is None:
                return answer
            await sleep(attempts.failed(problem))

    async def ask(self, ask: Ask, kind: Any) -> Any:
        """Return the response to a request, decoded as a type of the API."""
        return (await self.answer(ask)).read(kind)
