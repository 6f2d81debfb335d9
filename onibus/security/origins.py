"""Web pages of others, where no credentials are asked.

A server that asks for nothing is bound to this machine, but so is the browser on it, and a page
from anywhere may send requests to any address that the browser reaches. Such a request names where
the page came from, or, when the page's own name was made to lead here, the page's name as host.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from onibus.core.errors import Forbidden


def refuse_web_pages(headers: Mapping[str, str]) -> None:
    """Refuse what a browser sends for a page that is not ours."""
    host = headers.get("host", "localhost")
    if not is_local(host):
        raise Forbidden("this server asks for no credentials: reach it as localhost")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise Forbidden("this server asks for no credentials: not for the pages of others")


def is_local(host: str) -> bool:
    """Tell whether a host header, with a port or without, names this machine."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
