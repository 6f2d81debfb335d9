"""Shared access signatures: tokens that prove possession of a key for a limited time.

    SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<name of the key>

The signature is the base64 of HMAC-SHA256 under the bytes of the key's string. It covers the
resource exactly as in the token (percent-encoded by its creator), a line feed, and the expiry in
seconds since
1970. Parts may come in any order.

Tools that only support bearer tokens, such as Prometheus, use another form:

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
#: Longer strings are not valid tokens.
TOKEN_LENGTH_MAX = 4_096

_QUERY = re.compile("[?#]")
_PORT = re.compile(r":\d{1,5}$")


class Token:
    """The parts of a token, not verified yet."""

    __slots__ = ("expiry", "key_name", "resource", "signature")

    def __init__(self, text: str) -> None:
        if len(text) > TOKEN_LENGTH_MAX or not text.startswith(PREFIX):
            raise Unauthorized("not a shared access signature")
        parts: dict[str, str] = {}
        for part in text.removeprefix(PREFIX).split("&"):
            name, equals, value = part.partition("=")
            if not equals or name in parts:
                raise Unauthorized("the shared access signature is malformed")
            parts[name] = value
        for name in ("sr", "sig", "se", "skn"):
            if name not in parts:
                raise Unauthorized(f"the shared access signature lacks {name}")
        #: exactly as received, because it is signed
        self.resource = parts["sr"]
        self.expiry = parts["se"]
        self.signature = unquote(parts["sig"])
        # The Python SDK encodes the name twice.
        self.key_name = unquote(unquote(parts["skn"]))
        if not self.expiry.isascii() or not self.expiry.isdigit() or len(self.expiry) > 15:
            raise Unauthorized("the shared access signature has no expiry in seconds")

    def is_signed_by(self, key: str) -> bool:
        """Return whether the key made the signature."""
        expected = signature(self.resource, self.expiry, key)
        return compare_digest(expected.encode(), self.signature.encode("utf-8", "replace"))

    def scope(self) -> str:
        """Return the resource of the token, in lower case; empty for the namespace."""
        return scope_of(unquote(self.resource))


def signature(resource: str, expiry: str, key: str) -> str:
    """Return the signature of a resource, as encoded in the token, and an expiry."""
    text = f"{resource}\n{expiry}".encode("utf-8", "replace")
    return b64encode(new(key.encode(), text, sha256).digest()).decode()


def make_token(resource: str, key_name: str, key: str, expiry: int) -> str:
    """Return a token for a resource such as sb://localhost/orders."""
    encoded = quote(resource, safe="")
    signed = quote(signature(encoded, str(expiry), key), safe="")
    return f"{PREFIX}sr={encoded}&sig={signed}&se={expiry}&skn={quote(key_name, safe='')}"


def as_bearer(token: str) -> str:
    """Return a token in its bearer form."""
    return urlsafe_b64encode(token.removeprefix(PREFIX).encode()).decode().rstrip("=")


def of_bearer(text: str) -> str:
    """Return the token of a bearer token, or reject it."""
    try:
        if len(text) > TOKEN_LENGTH_MAX:
            raise ValueError
        return PREFIX + urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except ValueError:
        raise Unauthorized(
            "the bearer token is malformed: create one with `onibus keys token`"
        ) from None


def scope_of(resource: str) -> str:
    """Return the path of a resource, whatever its scheme and host.

    A resource without a scheme begins with its host. A single word is rejected: it may name an
    entity, but read as a host it would cover the whole namespace; with a port it is a host.
    """
    scheme, mark, rest = resource.partition("://")
    if not mark:
        rest = scheme
    host, slash, path = _QUERY.split(rest, maxsplit=1)[0].partition("/")
    if not mark and not (host and (slash or _PORT.search(host))):
        raise Unauthorized("the token names no resource such as sb://localhost/orders")
    return path.strip("/").lower()
