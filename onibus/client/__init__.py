"""Clients of a server: `Client` for blocking programs, `AsyncClient` for asyncio, with one API.

    with Client.connect("Endpoint=sb://localhost;SharedAccessKeyName=…;…") as client:
        client.create_queue("orders", requires_duplicate_detection=True)
        client.send("orders", Message(body=b"three apples"))
        with client.receiver("orders") as receiver:
            for message in receiver:
                receiver.complete(message)

`AsyncClient.on(bus)` offers the same calls on a Bus in this process. tools/blocking.py generates
`blocking` from `aio`, so both have the same calls.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onibus.client.aio.client import AsyncClient
    from onibus.client.blocking.client import Client
    from onibus.client.connecting import Target
    from onibus.client.problems import Unreachable
    from onibus.client.retrying import Retry

__all__ = ["AsyncClient", "Client", "Retry", "Target", "Unreachable"]

#: Module of each name, imported on first use: Spark starts many short processes.
_HOMES = {
    "AsyncClient": "aio.client",
    "Client": "blocking.client",
    "Retry": "retrying",
    "Target": "connecting",
    "Unreachable": "problems",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
