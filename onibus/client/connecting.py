"""Addresses and credentials of a server: connection strings, URLs and tokens.

    Endpoint=sb://localhost;SharedAccessKeyName=…;SharedAccessKey=…;UseDevelopmentEmulator=true;

`UseDevelopmentEmulator=true` selects plain text; otherwise the client uses TLS. The default port is
5300.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from onibus.core.errors import InvalidArgument
from onibus.security.sas import make_token

PORT = 5300
#: Lifetime of a token, and the remaining time at which a new one is generated.
TOKEN_SECONDS = 3_600
TOKEN_SECONDS_LEFT = 600


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address, and the credentials for it."""

    #: http://host:port
    url: str
    key_name: str = ""
    key: str = field(default="", repr=False)
    #: the entity of the key; empty for the whole namespace
    entity: str = ""

    @staticmethod
    def parse(text: str) -> Target:
        """Parse a connection string, or an address such as http://localhost:5300."""
        if text.startswith(("http://", "https://")):
            if not urlsplit(text).hostname:
                raise InvalidArgument(f"the address {text!r} has no host: write http://host:port")
            return Target(text.rstrip("/"))
        parts = _parts(text)
        endpoint = parts.get("endpoint")
        if not endpoint:
            raise InvalidArgument("the connection string has no Endpoint=sb://…")
        where = urlsplit(endpoint if "://" in endpoint else f"sb://{endpoint}")
        try:
            host, port = where.hostname, where.port or PORT
        except ValueError:
            raise InvalidArgument(f"the endpoint {endpoint!r} has an invalid port") from None
        if not host:
            raise InvalidArgument(f"the endpoint {endpoint!r} has no host")
        plain = parts.get("usedevelopmentemulator", "").lower() == "true"
        name = f"[{host}]" if ":" in host else host
        return Target(
            f"{'http' if plain else 'https'}://{name}:{port}",
            parts.get("sharedaccesskeyname", ""),
            parts.get("sharedaccesskey", ""),
            parts.get("entitypath", ""),
        )

    def credentials(self) -> Callable[[], str | None]:
        """Return a function for the Authorization header, or None without a key."""
        return Tokens(self).text if self.key else lambda: None


class Tokens:
    """Tokens signed with a key, each renewed before it expires."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.time) -> None:
        host = urlsplit(target.url).hostname
        self._resource = f"sb://{host}/{target.entity}"
        self._target = target
        self._clock = clock
        self._text = ""
        self._until = 0

    def text(self) -> str:
        """Return a token that stays valid for a while."""
        now = int(self._clock())
        if self._until - now < TOKEN_SECONDS_LEFT:
            self._until = now + TOKEN_SECONDS
            self._text = make_token(
                self._resource, self._target.key_name, self._target.key, self._until
            )
        return self._text


def _parts(text: str) -> dict[str, str]:
    """Return the parts of a connection string, with their names in lower case."""
    parts: dict[str, str] = {}
    for part in text.strip().split(";"):
        if not part:
            continue
        name, equals, value = part.partition("=")
        if not equals:
            # The part is not shown: it may contain a key.
            raise InvalidArgument("not a connection string: write Name=value;Name=value;…")
        parts[name.strip().lower()] = value.strip()
    return parts
