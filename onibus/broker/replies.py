"""Answers that are given later. An asyncio future is one; so is `Outcome`, where no loop runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Reply(Protocol):
    """Somebody who waits for an answer, or has stopped waiting."""

    def done(self) -> bool: ...

    def set_result(self, result: Any) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


class Outcome:
    """A reply that only keeps what it was told, and may pass it on."""

    __slots__ = ("_answered", "_then", "error", "value")

    def __init__(self, then: Callable[[Outcome], None] | None = None) -> None:
        self._answered = False
        self._then = then
        self.value: Any = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self._answered

    def set_result(self, result: Any) -> None:
        self._answered = True
        self.value = result
        if self._then is not None:
            self._then(self)

    def set_exception(self, exception: BaseException) -> None:
        self._answered = True
        self.error = exception
        if self._then is not None:
            self._then(self)


class _Told:
    """A reply that was given."""

    def done(self) -> bool:
        return True

    def set_result(self, result: Any) -> None:
        raise AssertionError("replied twice")

    set_exception = set_result


#: Replaces a reply that was given, so that the caller is not kept in memory.
TOLD = _Told()


def answer(reply: Reply, value: Any) -> None:
    """Answer whoever still waits."""
    if not reply.done():
        reply.set_result(value)


def fail(reply: Reply, error: BaseException) -> None:
    """Tell whoever still waits what went wrong."""
    if not reply.done():
        reply.set_exception(error)
