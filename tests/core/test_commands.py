"""Commands are checked when they are built, and a partition knows whether one changed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onibus.core import commands as c
from onibus.core.errors import InvalidArgument, Refused, UnknownToken
from onibus.core.handlers import CHECKS, HANDLERS
from onibus.core.inspection import Filter, NonExclusive
from onibus.core.records import HOLDS
from tests.core.partition_helpers import Bench

TOKEN = b"t" * 16
SESSION = c.HeldSession("s", TOKEN)


def kinds(base: type[Any]) -> Iterator[type[Any]]:
    """Yield every kind of command that can be given."""
    for kind in base.__subclasses__():
        yield from kinds(kind)
        if not kind.__subclasses__() and kind is not c.Query:
            yield kind


def test_each_command_has_one_handler() -> None:
    assert set(HANDLERS) == set(kinds(c.Command))
    assert set(CHECKS) <= set(HANDLERS)


@pytest.mark.parametrize(
    "build",
    [
        lambda: c.Receive(0, 0),
        lambda: c.Receive(0, 10_001),
        lambda: c.Receive(0, "1"),  # type: ignore[arg-type]
        lambda: c.Receive(0, 1, visibility_ms=-1),
        lambda: c.ReceiveFifo(0, 1, 12 * 3_600_000 + 1),
        lambda: c.ReceiveFifo(0, 1, 1, ""),
        lambda: c.ReceiveDeferred(0, []),
        lambda: c.ReceiveDeferred(0, 5),  # type: ignore[arg-type]
        lambda: c.Settlement("abandon", -1),
        lambda: c.Settlement("defer", delay_ms=0.5),  # type: ignore[arg-type]
        lambda: c.Settlement("dead-letter", reason="x" * 4_097),
        lambda: c.Settlement("dead-letter", description=b"x"),  # type: ignore[arg-type]
        lambda: c.Settlement("abandon", properties={"a": [1]}),
        lambda: c.Settlement("abandon", properties={"a": "\ud800"}),
        lambda: c.Settlement("abandon", properties=[]),  # type: ignore[arg-type]
        lambda: c.Settle(0, c.COMPLETE, [TOKEN, b"short"]),
        lambda: c.Delete(0, [b""]),
        lambda: c.Renew(0, ["text"]),  # type: ignore[list-item]
        lambda: c.Renew(0, [TOKEN], duration_ms=-1),
        lambda: c.ChangeVisibility(0, [TOKEN], [1.5]),  # type: ignore[list-item]
        lambda: c.Cancel(0, []),
        lambda: c.Undefer(0, range(20_000)),
        lambda: c.HeldSession("s", b"another length"),
        lambda: c.HeldSession(7, TOKEN),  # type: ignore[arg-type]
        lambda: c.AcceptSession(0, "x" * 129),
        lambda: c.AcceptSession(0, None, sharing=NonExclusive(TOKEN)),
        lambda: c.AcceptSession(0, "s", sharing=NonExclusive("text")),  # type: ignore[arg-type]
        lambda: c.SetSessionState(0, SESSION, "text"),  # type: ignore[arg-type]
        lambda: c.SetSessionState(0, SESSION, b"x" * (256 * 1024 + 1)),
        lambda: c.Peek(0, Filter(state="lost"), 1, 1),
        lambda: c.Peek(0, Filter(), 0, 1),
        lambda: c.Purge(0, Filter(sql="a ="), 0, 1),
        lambda: c.Purge(0, "all", 0, 1),  # type: ignore[arg-type]
        lambda: c.FindHeld(0, b""),
    ],
)
def test_malformed_arguments_are_rejected_when_a_command_is_built(
    build: Callable[[], object],
) -> None:
    with pytest.raises((InvalidArgument, UnknownToken)):
        build()


def lock_and(then: Callable[[], Any]) -> Callable[..., Any]:
    """Return a handler that locks a message, and then does something else."""

    def handler(partition: Any, command: Any, now: int, wall: int, out: Any) -> Any:
        HANDLERS[c.Receive](partition, c.Receive(0, 1), now, wall, out)
        return then()

    return handler


def test_a_change_is_written_whatever_its_handler_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.send(b"x")
    monkeypatch.setitem(HANDLERS, c.ForgetIds, lock_and(lambda: None))
    bench.apply(c.ForgetIds())
    assert len(bench.out.tables[HOLDS]) == 1


def test_a_rejection_after_a_change_is_not_taken_for_a_rejection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.send(b"x")

    def reject() -> None:
        raise Refused("no")

    monkeypatch.setitem(HANDLERS, c.ForgetIds, lock_and(reject))
    with pytest.raises(AssertionError):
        bench.apply(c.ForgetIds())


def test_a_query_that_changes_something_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.send(b"x")
    monkeypatch.setitem(HANDLERS, c.ListDuplicates, lock_and(list))
    with pytest.raises(AssertionError):
        bench.apply(c.ListDuplicates())
