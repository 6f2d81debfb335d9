"""Replies that come later: an asyncio future, or a `KeptReply` if no loop runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Reply(Protocol):
    """A pending call, or one that has stopped waiting."""

    def done(self) -> bool: ...

    def set_result(self, result: Any) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


class OfClient:
    """A reply to a client whose connection may end before it is given."""

    __slots__ = ("_has_left", "_reply")

    def __init__(self, reply: Reply, has_left: Callable[[], bool]) -> None:
        self._reply = reply
        self._has_left = has_left

    def done(self) -> bool:
        return self._reply.done()

    def set_result(self, result: Any) -> None:
        self._reply.set_result(result)

    def set_exception(self, exception: BaseException) -> None:
        self._reply.set_exception(exception)

    def is_unwanted(self) -> bool:
        return self._has_left()


class KeptReply:
    """A reply that keeps its value or error, and may pass it on to `caller`."""

    __slots__ = ("_answered", "_caller", "_then", "error", "value")

    def __init__(
        self, then: Callable[[KeptReply], None] | None = None, caller: Reply | None = None
    ) -> None:
        self._answered = False
        self._then = then
        self._caller = caller
        self.value: Any = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self._answered

    def is_unwanted(self) -> bool:
        return self._caller is not None and is_unwanted(self._caller)

    def then(self, then: Callable[[KeptReply], None]) -> None:
        """Call a function when it is given."""
        self._then = then

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


def is_unwanted(reply: Reply) -> bool:
    """Return whether the caller has stopped waiting, or its client has disconnected."""
    if reply.done():
        return True
    # A future has no such method: its caller cancels it.
    unwanted: Callable[[], bool] | None = getattr(reply, "is_unwanted", None)
    return unwanted is not None and unwanted()


def answer(reply: Reply, value: Any) -> None:
    """Complete a call that still waits."""
    if not reply.done():
        reply.set_result(value)


def fail(reply: Reply, error: BaseException) -> None:
    """Fail a call that still waits."""
    if not reply.done():
        reply.set_exception(error)
