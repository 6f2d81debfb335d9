"""Shared access keys: create, rotate, delete and list them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onibus.api.operation import PRIMARY, KeyOut, KeysOut, KeyWithSecrets, TokenOut
from onibus.client.aio.caller import AsyncCaller
from onibus.client.asking import get, path_of, post
from onibus.client.convert import key_of

if TYPE_CHECKING:
    from onibus.security.keys import AccessKey

_KEYS = "keys"


class AsyncKeyCalls(AsyncCaller):
    """Operations on the keys of a namespace."""

    async def keys(self) -> list[KeyOut]:
        """Return all keys, without their secrets."""
        told: KeysOut = await self.ask(get(path_of(_KEYS)), KeysOut)
        return told.keys

    async def create_key(self, name: str, rights: Iterable[str], *, entity: str = "") -> AccessKey:
        """Create a key of the whole namespace, or of one entity, and return its secrets once.

        `rights` are Send, Listen, Manage, and for the whole namespace Monitor.
        """
        body = {"name": name, "rights": list(rights), "entity": entity}
        # A repeated request would be rejected, and the secrets lost.
        return await self._secrets(post(path_of(_KEYS), body, repeats=False))

    async def rotate_key(self, name: str, which: str = PRIMARY, *, entity: str = "") -> AccessKey:
        """Replace the primary or the secondary secret of a key; the old one becomes invalid."""
        body = {"which": which, "entity": entity}
        return await self._secrets(post(path_of(_KEYS, name, "rotate"), body))

    async def key_token(
        self, name: str, seconds: int, *, which: str = PRIMARY, entity: str = ""
    ) -> TokenOut:
        """Create a bearer token with the rights of a key, for tools that cannot sign."""
        body = {"seconds": seconds, "which": which, "entity": entity}
        told: TokenOut = await self.ask(post(path_of(_KEYS, name, "token"), body), TokenOut)
        return told

    async def delete_key(self, name: str, *, entity: str = "") -> None:
        """Delete a key; tokens made with it become invalid."""
        query = {"entity": entity} if entity else {}
        await self.answer(post(path_of(_KEYS, name), method="DELETE", query=query))

    async def _secrets(self, ask: Any) -> AccessKey:
        told: KeyWithSecrets = await self.ask(ask, KeyWithSecrets)
        return key_of(told)
