"""Shared access keys: create, rotate, delete and list them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onibus.api.operation import PRIMARY, KeyOut, KeysOut, KeyWithSecrets, TokenOut
from onibus.client.asking import get, path_of, post
from onibus.client.blocking.caller import Caller
from onibus.client.convert import key_of

if TYPE_CHECKING:
    from onibus.security.keys import AccessKey

_KEYS = "keys"


class KeyCalls(Caller):
    """Operations on the keys of a namespace."""

    def keys(self) -> list[KeyOut]:
        """Return all keys, without their secrets."""
        told: KeysOut = self.ask(get(path_of(_KEYS)), KeysOut)
        return told.keys

    def create_key(self, name: str, rights: Iterable[str], *, entity: str = "") -> AccessKey:
        """Create a key of the whole namespace, or of one entity, and return its secrets once.

        `rights` are Send, Listen, Manage, and for the whole namespace Monitor.
        """
        body = {"name": name, "rights": list(rights), "entity": entity}
        # A repeated request would be rejected, and the secrets lost.
        return self._secrets(post(path_of(_KEYS), body, repeats=False))

    def rotate_key(self, name: str, which: str = PRIMARY, *, entity: str = "") -> AccessKey:
        """Replace the primary or the secondary secret of a key; the old one becomes invalid."""
        body = {"which": which, "entity": entity}
        return self._secrets(post(path_of(_KEYS, name, "rotate"), body))

    def key_token(
        self, name: str, seconds: int, *, which: str = PRIMARY, entity: str = ""
    ) -> TokenOut:
        """Create a bearer token with the rights of a key, for tools that cannot sign."""
        body = {"seconds": seconds, "which": which, "entity": entity}
        told: TokenOut = self.ask(post(path_of(_KEYS, name, "token"), body), TokenOut)
        return told

    def delete_key(self, name: str, *, entity: str = "") -> None:
        """Delete a key; tokens made with it become invalid."""
        query = {"entity": entity} if entity else {}
        self.answer(post(path_of(_KEYS, name), method="DELETE", query=query))

    def _secrets(self, ask: Any) -> AccessKey:
        told: KeyWithSecrets = self.ask(ask, KeyWithSecrets)
        return key_of(told)
