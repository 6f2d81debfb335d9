"""Web pages and other hosts, where a server accepts a well-known key or none.

A server that accepts the well-known key, or requires no credentials, is for programs on this
machine. A browser on this machine sends requests for any page it shows, and a page can sign with
the well-known key. Such a request names the page's origin. If the page's own name was made to
resolve to this machine (DNS rebinding), the request names that host. A program names neither.

Every listener checks `Origins` first: the native API, management, SQS, and AMQP over WebSocket.
Plain AMQP needs no check, since no browser can begin a connection with its header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Protocol

from onibus.core.errors import Forbidden

_PORT = re.compile(r":\d{1,5}$")
#: Fetch-Site values of requests from a page of this server, or from no page.
_OWN_SITES = ("same-origin", "none")
#: Headers that name the page of a request.
_WHOSE = ("origin", "referer")
#: Number of accepted hosts to cache, and characters of a rejected one that an error shows.
_HOSTS_KEPT = 64
_SHOWN = 80


class Keys(Protocol):
    """Source of whether the well-known key is accepted."""

    development: bool


class Origins:
    """Rejection of requests from web pages, while the server accepts a well-known key or none."""

    def __init__(self, keys: Keys | None, hosts: Iterable[str] = ()) -> None:
        #: None if the server requires no credentials
        self._keys = keys
        self._allowed = {host.lower() for host in hosts}
        #: accepted values of the Host header
        self._good: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether the server accepts a well-known key or none."""
        return self._keys is None or self._keys.development

    def check(self, headers: Mapping[str, str]) -> None:
        """Reject a request for another host, or from a page of another site."""
        keys = self._keys
        if keys is not None and not keys.development:
            return
        host = headers.get("host", "localhost")
        if host not in self._good:
            self._check_host(host)
        if "origin" in headers or "referer" in headers or "sec-fetch-site" in headers:
            _check_page(headers, host.lower())

    def check_change(self, method: str) -> None:
        """Reject a change by GET: a page could send it with an image."""
        if method != "POST" and self.is_open:
            raise Forbidden(
                f"{method} cannot change anything while a well-known key or none is accepted: "
                "use POST, or create a key"
            )

    def _check_host(self, host: str) -> None:
        name = host_name(host)
        if not is_local(name) and name not in self._allowed:
            shown = repr(name[:_SHOWN])
            raise Forbidden(
                f"host {shown} is unknown, and a well-known key or none is accepted: use "
                f"localhost, or start the server with --allow-host {shown}"
            )
        if len(self._good) >= _HOSTS_KEPT:
            self._good.clear()
        self._good.add(host)


def _check_page(headers: Mapping[str, str], host: str) -> None:
    """Reject a browser's request for a page of another site."""
    own = headers.get("sec-fetch-site", "none") in _OWN_SITES
    if not own or any(_authority(headers[name]) != host for name in _WHOSE if name in headers):
        raise Forbidden(
            "web pages of other sites cannot use a server that accepts a well-known key or none: "
            "create a key"
        )


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port, in lower case."""
    bare = host if host.count(":") > 1 and not host.startswith("[") else _PORT.sub("", host)
    return bare.strip("[]").rstrip(".").lower()


def is_local(name: str) -> bool:
    """Return whether a host name always means this machine, whatever DNS says."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _authority(address: str) -> str:
    """Return host and port of an address; empty for `null`, the origin of a sandbox."""
    return address.partition("://")[2].partition("/")[0].lower()
