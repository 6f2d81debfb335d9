"""Shared access keys: two per name, so that one can be replaced while the other is in use.

The emulator's well-known key is accepted in development only, until the bus has its own keys.
Comparisons take the same time whatever is wrong. No key is ever part of an error, a log line or
the output of `repr`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from onibus.core.errors import InvalidArgument, Unauthorized
from onibus.core.settings import check_name
from onibus.security.rights import ALL, Granted, Right
from onibus.security.sas import BEARER, PREFIX, Token, of_bearer

#: The Service Bus emulator's key, which programs written for it use.
ROOT_NAME = "RootManageSharedAccessKey"
DEVELOPMENT_KEY = "SAS_KEY_VALUE"

#: Error for clients that use it with any other server.
WELL_KNOWN = (
    "the emulator's well-known key is accepted in development only: use the connection string "
    "in the server's data directory, or start the server with --development"
)

#: Number of verified tokens to cache.
TOKENS_KEPT = 10_000
#: Anyone who has seen a token can test guessed keys against it, so short keys are rejected.
KEY_LENGTH_MIN = 16
KEY_LENGTH_MAX = 256
#: Random bytes in a generated key.
_KEY_BYTES = 32

_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")
#: Secret to check a signature against if its key is unknown: it takes as long.
_NO_KEY = secrets.token_urlsafe(_KEY_BYTES)


class AccessKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named key with its rights."""

    name: str
    primary: str
    secondary: str = ""
    rights: frozenset[Right] = ALL
    #: its entity, in lower case; empty for the whole namespace
    entity: str = ""

    def __repr__(self) -> str:
        rights = sorted(right.value for right in self.rights)
        return f"AccessKey({self.name!r}, entity={self.entity!r}, rights={rights})"

    @property
    def is_well_known(self) -> bool:
        """Whether the key is the emulator's well-known one, under any name."""
        return DEVELOPMENT_KEY in (self.primary, self.secondary)


DEVELOPMENT = AccessKey(name=ROOT_NAME, primary=DEVELOPMENT_KEY)
#: The key pair that programs use with a local SQS.
DEVELOPMENT_SQS = AccessKey(name="test", primary="test")


def generate() -> str:
    """Return a new random key."""
    return secrets.token_urlsafe(_KEY_BYTES)


def check_key(key: AccessKey) -> AccessKey:
    """Return a key to store, or reject it; errors never show it."""
    if not _NAME.fullmatch(key.name):
        raise InvalidArgument("invalid key name: use 1 to 256 letters, digits and . - _")
    if not key.rights:
        raise InvalidArgument(
            f"key {key.name!r} has no rights: grant Send, Listen, Manage or Monitor"
        )
    if key.entity and Right.MONITOR in key.rights:
        raise InvalidArgument(
            f"key {key.name!r} has Monitor, a right on the whole namespace: omit the entity"
        )
    for which, text in (("primary", key.primary), ("secondary", key.secondary)):
        if text == DEVELOPMENT_KEY or (which == "secondary" and not text):
            continue
        if not KEY_LENGTH_MIN <= len(text) <= KEY_LENGTH_MAX:
            raise InvalidArgument(
                f"the {which} key of {key.name!r} must have {KEY_LENGTH_MIN} to {KEY_LENGTH_MAX} "
                "characters; omit both, and the server generates them"
            )
        if not text.isascii() or not text.isprintable() or ";" in text:
            raise InvalidArgument(
                f"the {which} key of {key.name!r} must have printable ASCII characters and no ;"
            )
    entity = check_name(key.entity) if key.entity else ""
    return msgspec.structs.replace(key, entity=entity)


class Doorkeeper(Protocol):
    """A verifier of credentials."""

    #: the well-known key is accepted
    development: bool

    def check(self, credentials: str, now: float) -> Granted:
        """Return the rights of credentials, or reject them."""

    def remembers(self, credentials: str, now: float) -> bool:
        """Return whether these credentials were verified before and are still valid."""

    def watch(self, told: Callable[[], None]) -> None:
        """Call back when keys are replaced."""


class Keyring:
    """All keys, and the tokens verified with them."""

    def __init__(self, keys: Iterable[AccessKey] = (), *, development: bool = False) -> None:
        #: whether the well-known key is accepted; `replace` updates it
        self.development = development
        self._keys: dict[tuple[str, str], list[AccessKey]] = {}
        self._named: dict[str, list[AccessKey]] = {}
        self._tokens: dict[str, Granted] = {}
        self._watchers: list[Callable[[], None]] = []
        self.replace(keys)

    def replace(self, keys: Iterable[AccessKey]) -> None:
        """Replace all keys, and verify all tokens again."""
        self._keys = {}
        self._named = {}
        for key in [*keys, DEVELOPMENT] if self.development else keys:
            self._keys.setdefault((key.name, key.entity.lower()), []).append(key)
            self._named.setdefault(key.name, []).append(key)
        self._tokens = {}
        for told in self._watchers:
            told()

    def watch(self, told: Callable[[], None]) -> None:
        """Call back when keys are replaced: credentials accepted before may be invalid."""
        self._watchers.append(told)

    def remembers(self, credentials: str, now: float) -> bool:
        """Return whether an Authorization header was accepted before and is still valid."""
        granted = self._tokens.get(credentials)
        return granted is not None and granted.until > now

    def check(self, credentials: str, now: float) -> Granted:
        """Return the rights of an Authorization header, or reject it."""
        granted = self._tokens.get(credentials)
        if granted is not None and granted.until > now:
            return granted
        shown = credentials
        if shown.startswith(BEARER):
            shown = of_bearer(shown.removeprefix(BEARER).strip())
        if not shown.startswith(PREFIX):
            raise Unauthorized("send a shared access signature in the Authorization header")
        granted = self._check_token(Token(shown), now)
        if len(self._tokens) >= TOKENS_KEPT:
            self._tokens.clear()
        self._tokens[credentials] = granted
        return granted

    def _check_token(self, token: Token, now: float) -> Granted:
        scope = token.scope()
        found = None
        for key in self._candidates(token.key_name, scope):
            good = token.is_signed_by(key.primary)
            if token.is_signed_by(key.secondary or _NO_KEY) or good:
                found = key
        if found is None:
            if token.is_signed_by(DEVELOPMENT_KEY) and not self.development:
                raise Unauthorized(WELL_KNOWN)
            raise Unauthorized("the shared access signature does not match a key of this bus")
        until = int(token.expiry)
        if until <= now:
            raise Unauthorized("the shared access signature has expired: make a new one")
        return Granted(found.name, found.rights, entity=found.entity, scope=scope, until=until)

    def named(self, name: str) -> list[AccessKey]:
        """Return all keys with a name: an access key id for SQS, whose secrets are their two keys.

        A namespace key and entity keys may share a name.
        """
        found = list(self._named.get(name, ()))
        if self.development and name == DEVELOPMENT_SQS.name:
            found.append(DEVELOPMENT_SQS)
        return found

    def _candidates(self, name: str, scope: str) -> list[AccessKey]:
        """Return the keys of that name that may have signed a token for a scope."""
        found: list[AccessKey] = []
        while True:
            found += self._keys.get((name, scope), ())
            if not scope:
                return found
            scope = scope.rpartition("/")[0]
