"""Shared access signatures: tokens that prove, for a time, that somebody has a key.

    SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<name of the key>

The signature is the base64 of HMAC-SHA256 under the bytes of the key as text, of the resource
exactly as it stands in the token (percent-encoded by whoever made it), a line feed, and the expiry
in seconds since 1970. Parts may come in any order.

Tools that only know bearer tokens, Prometheus among them, show the same in another form:

    Bearer <base64url, without padding, of everything after "SharedAccessSignature ">
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from hmac import compare_digest, new
from urllib.parse import quote, unquote

from onibus.core.errors import Unauthorized

PREFIX = "SharedAccessSignature "
BEARER = "Bearer "
#: Longer ones are no tokens of anybody.
TOKEN_LENGTH_MAX = 4_096

_QUERY = re.compile("[?#]")
_PORT = re.compile(r":\d{1,5}$")


class Token:
    """The parts of a token, not believed yet."""

    __slots__ = ("expiry", "key_name", "resource", "signature")

    def __init__(self, text: str) -> None:
        if len(text) > TOKEN_LENGTH_MAX or not text.startswith(PREFIX):
            raise Unauthorized("that is no shared access signature")
        parts: dict[str, str] = {}
        for part in text.removeprefix(PREFIX).split("&"):
            name, equals, value = part.partition("=")
            if not equals or name in parts:
                raise Unauthorized("the shared access signature is malformed")
            parts[name] = value
        for name in ("sr", "sig", "se", "skn"):
            if name not in parts:
                raise Unauthorized(f"the shared access signature lacks {name}")
        #: exactly as it came: it is what was signed
        self.resource = parts["sr"]
        self.expiry = parts["se"]
        self.signature = unquote(parts["sig"])
        # The Python SDK encodes the name twice.
        self.key_name = unquote(unquote(parts["skn"]))
        if not self.expiry.isascii() or not self.expiry.isdigit() or len(self.expiry) > 15:
            raise Unauthorized("the shared access signature has no expiry in seconds")

    def is_signed_by(self, key: str) -> bool:
        """Tell whether a key made the signature."""
        expected = signature(self.resource, self.expiry, key)
        return compare_digest(expected.encode(), self.signature.encode("utf-8", "replace"))

    def scope(self) -> str:
        """Return what the token is for, in lower case; empty for the namespace."""
        return scope_of(unquote(self.resource))


def signature(resource: str, expiry: str, key: str) -> str:
    """Return the signature of a resource, as it is written in the token, and an expiry."""
    text = f"{resource}\n{expiry}".encode("utf-8", "replace")
    return b64encode(new(key.encode(), text, sha256).digest()).decode()


def make_token(resource: str, key_name: str, key: str, expiry: int) -> str:
    """Return a token for a resource such as sb://localhost/orders."""
    encoded = quote(resource, safe="")
    signed = quote(signature(encoded, str(expiry), key), safe="")
    return f"{PREFIX}sr={encoded}&sig={signed}&se={expiry}&skn={quote(key_name, safe='')}"


def as_bearer(token: str) -> str:
    """Return a token in the form that follows `Bearer`."""
    return urlsafe_b64encode(token.removeprefix(PREFIX).encode()).decode().rstrip("=")


def of_bearer(text: str) -> str:
    """Return the token that a bearer token stands for, or refuse it."""
    try:
        if len(text) > TOKEN_LENGTH_MAX:
            raise ValueError
        return PREFIX + urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except ValueError:
        raise Unauthorized("the bearer token is malformed: `onibus keys token` makes one") from None


def scope_of(resource: str) -> str:
    """Return the path in a resource, whatever its scheme and host are.

    A resource without a scheme begins with its host. One word alone is refused: it may be meant as
    an entity, and read as a host it would stand for the whole namespace; with a port it is a host.
    """
    scheme, mark, rest = resource.partition("://")
    if not mark:
        rest = scheme
    host, slash, path = _QUERY.split(rest, maxsplit=1)[0].partition("/")
    if not mark and not (host and (slash or _PORT.search(host))):
        raise Unauthorized("the token is for no resource such as sb://localhost/orders")
    return path.strip("/").lower()
