"""The two clients have one shape, and it is that of the Bus wherever both can do a thing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from onibus import Bus
from onibus.client import AsyncClient, Client
from onibus.client.aio.fifo import AsyncFifoReceiver
from onibus.client.aio.receiving import AsyncReceiver
from onibus.client.aio.sessions import AsyncSessionReceiver
from onibus.client.aio.transactions import AsyncTransaction
from onibus.client.blocking.fifo import FifoReceiver
from onibus.client.blocking.receiving import Receiver
from onibus.client.blocking.sessions import SessionReceiver
from onibus.client.blocking.transactions import Transaction
from tools import blocking

PAIRS = [
    (AsyncClient, Client),
    (AsyncReceiver, Receiver),
    (AsyncSessionReceiver, SessionReceiver),
    (AsyncFifoReceiver, FifoReceiver),
    (AsyncTransaction, Transaction),
]
#: What a Bus has because it is in the process: a client has no use for it.
OF_THE_BUS = {"admit_arrow", "keep_time", "ask", "check_alive", "ephemeral", "open", "tell"}


#: Parameters that the HTTP API does not have (docs/http-api.md).
_NOT_OVER_HTTP = {"limit_bytes", "batch", "exclusive", "lock_token"}


def shape(kind: type[Any]) -> dict[str, list[str]]:
    """Return the names of the parameters of all public calls."""
    return {
        name: list(inspect.signature(member).parameters)
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("awaited", "plain"), PAIRS)
def test_both_have_the_same_calls(awaited: type[Any], plain: type[Any]) -> None:
    expected = shape(awaited)
    expected.pop("on", None)
    assert shape(plain) == expected


def test_the_blocking_client_is_made_of_the_other_as_it_is_now() -> None:
    assert blocking.stale() == []


def test_a_change_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "blocking", lambda text: text)
    assert "client.py" in blocking.stale()


def test_whatever_a_bus_can_do_a_client_can() -> None:
    ours = shape(AsyncClient)
    for name, parameters in shape(Bus).items():
        if name in OF_THE_BUS:
            continue
        assert name in ours, f"{name} is missing"
        missing = set(parameters) - set(ours[name]) - _NOT_OVER_HTTP
        assert not missing, f"{name} lacks {missing}"
