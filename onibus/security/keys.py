"""Shared access keys: two a name, so that one can be replaced while the other is in use.

The emulator's well-known key is accepted on loopback only, unless the operator says otherwise.
Comparisons take the same time whatever is wrong. No key is ever part of an error or a log line.
"""

from __future__ import annotations

from hmac import compare_digest

import msgspec

from onibus.core.errors import Unauthorized
from onibus.security.rights import ALL, Granted, Right
from onibus.security.sas import PREFIX, Token

#: What the Service Bus emulator lets in, and every program that was written against it uses.
DEVELOPMENT_NAME = "RootManageSharedAccessKey"
DEVELOPMENT_KEY = "SAS_KEY_VALUE"

#: Tokens that were checked and found good are remembered; so many of them.
TOKENS_KEPT = 10_000


class AccessKey(msgspec.Struct, frozen=True, kw_only=True):
    """A named key with what it allows."""

    name: str
    primary: str
    secondary: str = ""
    rights: frozenset[Right] = ALL
    #: the entity it is for; empty for the whole namespace
    entity: str = ""

    def __repr__(self) -> str:
        return f"AccessKey({self.name!r}, rights={sorted(right.value for right in self.rights)})"

    def opens(self, key: str) -> bool:
        """Tell whether this is one of the two keys."""
        found = compare_digest(self.primary.encode(), key.encode())
        if self.secondary:
            found |= compare_digest(self.secondary.encode(), key.encode())
        return found


class Keyring:
    """All keys, and the tokens that were found good."""

    def __init__(self, keys: list[AccessKey], *, development: bool = False) -> None:
        self._keys = {(key.name, key.entity.lower()): key for key in keys}
        if development:
            known = AccessKey(name=DEVELOPMENT_NAME, primary=DEVELOPMENT_KEY)
            self._keys.setdefault((known.name, ""), known)
        self._tokens: dict[str, Granted] = {}

    def check(self, credentials: str, now: float) -> Granted:
        """Return what the text of an Authorization header allows, or refuse it."""
        granted = self._tokens.get(credentials)
        if granted is not None and granted.until > now:
            return granted
        if not credentials.startswith(PREFIX):
            raise Unauthorized("show a shared access signature in the Authorization header")
        granted = self._check_token(Token(credentials), now)
        if len(self._tokens) >= TOKENS_KEPT:
            self._tokens.clear()
        self._tokens[credentials] = granted
        return granted

    def _check_token(self, token: Token, now: float) -> Granted:
        scope = token.scope()
        for key in self._candidates(token.key_name, scope):
            if token.is_signed_by(key.primary) or (
                key.secondary and token.is_signed_by(key.secondary)
            ):
                if int(token.expiry) <= now:
                    raise Unauthorized("the shared access signature has expired: make a new one")
                return Granted(key.name, key.rights, scope or key.entity.lower(), int(token.expiry))
        raise Unauthorized("the shared access signature is not one of this bus")

    def _candidates(self, name: str, scope: str) -> list[AccessKey]:
        """Return the keys of that name that may have made a token for a scope."""
        found = []
        while True:
            key = self._keys.get((name, scope))
            if key is not None:
                found.append(key)
            if not scope:
                return found
            scope = scope.rpartition("/")[0]
