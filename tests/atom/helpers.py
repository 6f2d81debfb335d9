"""Clients of the administration, and words for what tests do often with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from azure.servicebus.management import ServiceBusAdministrationClient

from onibus.protocols.atom.xml import ATOM, INSTANCE, SERVICE_BUS
from onibus.security.keys import ROOT_NAME
from tests.server.processes import PATIENCE_S, Served

Name = Callable[[str], str]


def connection(server: Served, name: str = ROOT_NAME, key: str | None = None) -> str:
    """Return the connection string of a client that manages."""
    key = server.root_key if key is None else key
    where = f"Endpoint=sb://localhost:{server.port}"
    return f"{where};SharedAccessKeyName={name};SharedAccessKey={key}"


def administration(
    server: Served,
    name: str = ROOT_NAME,
    key: str | None = None,
    kind: Any = ServiceBusAdministrationClient,
) -> Any:
    """Return an administration client of Python that asks once."""
    return kind.from_connection_string(
        connection(server, name, key),
        connection_verify=server.ready["certificate"],
        retry_total=0,
    )


def plain(server: Served) -> httpx.Client:
    """Return a client that asks by hand, on the same port without TLS."""
    return httpx.Client(
        base_url=f"http://localhost:{server.port}",
        params={"api-version": "2021-05"},
        trust_env=False,
        timeout=PATIENCE_S,
    )


def body(inner: str = "", kind: str = "QueueDescription") -> str:
    """Return the entry around what a description has in it."""
    names = f'xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}"'
    content = f"<content><{kind} {names}>{inner}</{kind}></content>"
    return f'<entry xmlns="{ATOM}">{content}</entry>'
