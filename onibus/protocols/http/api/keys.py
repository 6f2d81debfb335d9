"""Shared access keys over HTTP. Only the responses to create and rotate contain secrets."""

from __future__ import annotations

import time

from onibus.api.operation import (
    KeyIn,
    KeyOut,
    KeysOut,
    KeyWithSecrets,
    Rotation,
    TokenIn,
    TokenOut,
    Whose,
)
from onibus.core.errors import InvalidOperation
from onibus.protocols.http.route import Call, Route
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import AccessKey
from onibus.security.rights import Right


def _keys(call: Call) -> KeptKeys:
    keys = call.app.kept_keys
    if keys is None:
        raise InvalidOperation("this server requires no credentials (--insecure): it has no keys")
    return keys


def _rights(key: AccessKey) -> list[str]:
    return [right.value for right in Right if right in key.rights]


def _with_secrets(key: AccessKey) -> KeyWithSecrets:
    return KeyWithSecrets(
        name=key.name,
        entity=key.entity,
        rights=_rights(key),
        primary=key.primary,
        secondary=key.secondary,
    )


async def list_keys(call: Call) -> KeysOut:
    """List all keys, without their secrets."""
    return KeysOut(
        [
            KeyOut(name=key.name, entity=key.entity, rights=_rights(key), configured=configured)
            for key, configured in _keys(call).list()
        ]
    )


async def create_key(call: Call) -> KeyWithSecrets:
    """Create a key; only this response has its secrets."""
    given: KeyIn = call.decode(KeyIn)
    wanted = AccessKey(
        name=given.name, primary="", rights=frozenset(given.rights), entity=given.entity
    )
    return _with_secrets(await _keys(call).create(wanted))


async def rotate_key(call: Call) -> KeyWithSecrets:
    """Replace one of a key's two secrets; the old one becomes invalid."""
    given: Rotation = call.decode(Rotation)
    return _with_secrets(await _keys(call).rotate(given.entity, call.names["name"], given.which))


async def make_token(call: Call) -> TokenOut:
    """Create a bearer token for tools that cannot sign; the server does not store it."""
    given: TokenIn = call.decode(TokenIn)
    until = int(time.time()) + given.seconds
    token = _keys(call).token(given.entity, call.names["name"], given.which, until)
    return TokenOut(token=token, expires_at=until)


async def delete_key(call: Call) -> None:
    """Delete a key; tokens made with it become invalid."""
    given: Whose = call.query(Whose)
    await _keys(call).delete(given.entity, call.names["name"])


ROUTES = [
    Route(
        method="GET",
        path="/v1/keys",
        summary="List shared access keys, without their secrets.",
        right=Right.MANAGE,
        handler=list_keys,
        gives=KeysOut,
        tag="keys",
    ),
    Route(
        method="POST",
        path="/v1/keys",
        summary="Create a shared access key.",
        right=Right.MANAGE,
        handler=create_key,
        takes=KeyIn,
        gives=KeyWithSecrets,
        status=201,
        tag="keys",
    ),
    Route(
        method="POST",
        path="/v1/keys/{name}/rotate",
        summary="Replace one of the two secrets of a key.",
        right=Right.MANAGE,
        handler=rotate_key,
        takes=Rotation,
        gives=KeyWithSecrets,
        tag="keys",
    ),
    Route(
        method="POST",
        path="/v1/keys/{name}/token",
        summary="Create a bearer token with the rights of a key.",
        right=Right.MANAGE,
        handler=make_token,
        takes=TokenIn,
        gives=TokenOut,
        tag="keys",
    ),
    Route(
        method="DELETE",
        path="/v1/keys/{name}",
        summary="Delete a key.",
        right=Right.MANAGE,
        handler=delete_key,
        query=Whose,
        tag="keys",
    ),
]
