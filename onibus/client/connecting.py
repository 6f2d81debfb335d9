"""Where a server is and what to show it: connection strings, addresses, tokens.

    Endpoint=sb://localhost;SharedAccessKeyName=…;SharedAccessKey=…;UseDevelopmentEmulator=true;

`UseDevelopmentEmulator=true` means plain text; without it TLS is spoken. The port is 5300 unless
the endpoint names another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from onibus.core.errors import InvalidArgument
from onibus.security.sas import make_token

PORT = 5300
#: Tokens are made for so long, and made anew when so little of it is left.
TOKEN_SECONDS = 3_600
TOKEN_SECONDS_LEFT = 600


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and who we are to it."""

    #: http://host:port
    url: str
    key_name: str = ""
    key: str = field(default="", repr=False)
    #: the entity that the key is for; empty for the whole namespace
    entity: str = ""

    @staticmethod
    def parse(text: str) -> Target:
        """Read a connection string, or an address such as http://localhost:5300."""
        if text.startswith(("http://", "https://")):
            if not urlsplit(text).hostname:
                raise InvalidArgument(f"the address {text!r} names no host")
            return Target(text.rstrip("/"))
        parts = _parts(text)
        endpoint = parts.get("endpoint")
        if not endpoint:
            raise InvalidArgument("a connection string has Endpoint=sb://… in it")
        where = urlsplit(endpoint if "://" in endpoint else f"sb://{endpoint}")
        try:
            host, port = where.hostname, where.port or PORT
        except ValueError:
            raise InvalidArgument(f"the endpoint {endpoint!r} has no readable port") from None
        if not host:
            raise InvalidArgument(f"the endpoint {endpoint!r} names no host")
        plain = parts.get("usedevelopmentemulator", "").lower() == "true"
        name = f"[{host}]" if ":" in host else host
        return Target(
            f"{'http' if plain else 'https'}://{name}:{port}",
            parts.get("sharedaccesskeyname", ""),
            parts.get("sharedaccesskey", ""),
            parts.get("entitypath", ""),
        )

    def credentials(self) -> Callable[[], str | None]:
        """Return what gives the text of the Authorization header; None where there is no key."""
        return Tokens(self).text if self.key else lambda: None


class Tokens:
    """Makes tokens with a key, each anew before the last one expires."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.time) -> None:
        host = urlsplit(target.url).hostname
        self._resource = f"sb://{host}/{target.entity}"
        self._target = target
        self._clock = clock
        self._text = ""
        self._until = 0

    def text(self) -> str:
        """Return a token that is good for a while yet."""
        now = int(self._clock())
        if self._until - now < TOKEN_SECONDS_LEFT:
            self._until = now + TOKEN_SECONDS
            self._text = make_token(
                self._resource, self._target.key_name, self._target.key, self._until
            )
        return self._text


def _parts(text: str) -> dict[str, str]:
    """Return the parts of a connection string; their names in lower case."""
    parts: dict[str, str] = {}
    for part in text.strip().split(";"):
        if not part:
            continue
        name, equals, value = part.partition("=")
        if not equals:
            # The part is not shown: it may be a piece of a key.
            raise InvalidArgument("a connection string is Name=value;Name=value; and so on")
        parts[name.strip().lower()] = value.strip()
    return parts
