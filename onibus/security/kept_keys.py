"""Shared access keys: those of the configuration, and those that the bus stores.

A key of the configuration can only be changed there; it overrides a stored key of the same name. A
stored key is created, rotated and deleted here, with effect as soon as the change is durable.


The well-known key is accepted until the bus has its own keys: one in the configuration, or one that
an operator created, rotated or deleted. From then on it is rejected, even after a restart. The root
key that a server creates at its first start does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from onibus.api.operation import PRIMARY, SECONDARY
from onibus.bus import Bus
from onibus.core.errors import InvalidArgument, InvalidOperation, KeyExists, KeyNotFound
from onibus.security.keys import ROOT_NAME, AccessKey, Keyring, check_key, generate
from onibus.security.rights import Right
from onibus.security.sas import as_bearer, make_token


class KeptKeys:
    """The keys of one bus, which also update its keyring."""

    def __init__(self, bus: Bus, keyring: Keyring, configured: Iterable[AccessKey] = ()) -> None:
        self.keyring = keyring
        self._bus = bus
        self._configured = {(key.entity, key.name): key for key in configured}
        self._kept: dict[tuple[str, str], AccessKey] = {}
        #: called when keys are created, changed or deleted
        self.changed: Callable[[], None] = lambda: None
        self._rows = bus.broker.namespace.keys
        self._rows.changed = self._read
        self._read()

    def _read(self) -> None:
        self._kept = {
            name: msgspec.json.decode(content, type=AccessKey)
            for name, content in self._rows.rows.items()
        }
        if self.has_own:
            self.keyring.development = False
        self.keyring.replace((self._kept | self._configured).values())
        self.changed()

    @property
    def has_own(self) -> bool:
        """Whether the bus has, or had, a key that an operator chose.

        Earlier versions did not record that a key was created: any key but the root shows it.
        """
        others = self._kept.keys() - {("", ROOT_NAME)}
        return bool(self._configured or self._rows.managed or others)

    def list(self) -> list[tuple[AccessKey, bool]]:
        """Return all keys by entity and name, and whether each is in the configuration."""
        keys = self._kept | self._configured
        return [(keys[name], name in self._configured) for name in sorted(keys)]

    async def create(self, key: AccessKey) -> AccessKey:
        """Store a new key, generating missing secrets; return it with its secrets."""
        made = checked_new(key)
        name = (made.entity, made.name)
        if name in self._kept or name in self._configured:
            raise KeyExists(f"key {made.name!r} exists already: rotate it")
        if self.keyring.development and not any(map(_manages, (made, *self._kept.values()))):
            raise InvalidOperation(
                "the first key ends development, and the well-known key with it: first create a "
                "key with Manage for the whole namespace"
            )
        await self._keep(made)
        return made

    async def replace(self, key: AccessKey) -> AccessKey:
        """Replace the key of the same name; empty secrets stay unchanged."""
        before = self._find(key.entity, key.name)
        made = msgspec.structs.replace(
            key,
            primary=key.primary or before.primary,
            secondary=key.secondary or before.secondary,
        )
        await self._keep(_checked(made))
        return made

    async def rotate(self, entity: str, name: str, which: str) -> AccessKey:
        """Replace one of the two secrets; clients that use the other one are not affected."""
        key = self._find(entity, name)
        if which == PRIMARY:
            made = msgspec.structs.replace(key, primary=generate())
        elif which == SECONDARY:
            made = msgspec.structs.replace(key, secondary=generate())
        else:
            raise InvalidArgument("unknown secret: rotate primary or secondary")
        await self._keep(made)
        return made

    async def delete(self, entity: str, name: str) -> None:
        """Delete a key; tokens made with it become invalid."""
        await self._write(self._find(entity, name), None)

    def token(self, entity: str, name: str, which: str, until: int) -> str:
        """Return a bearer token with the rights of a key, valid until that time."""
        keys = self._kept | self._configured
        key = keys.get((entity.lower(), name))
        if key is None:
            raise _no_key(entity, name)
        secret = {PRIMARY: key.primary, SECONDARY: key.secondary}.get(which)
        if not secret:
            raise InvalidArgument(f"key {name!r} has no {which} secret: use primary or secondary")
        return as_bearer(make_token(f"sb://onibus/{key.entity}", key.name, secret, until))

    async def make_root(self) -> None:
        """Create the root key, if there are no keys at all."""
        if not self._kept and not self._configured:
            root = checked_new(AccessKey(name=ROOT_NAME, primary=""))
            await self._write(root, msgspec.json.encode(root), managed=False)

    @property
    def root(self) -> AccessKey | None:
        """The root key, or None."""
        return (self._kept | self._configured).get(("", ROOT_NAME))

    def _find(self, entity: str, name: str) -> AccessKey:
        found = (entity.lower(), name)
        if found in self._configured:
            raise InvalidArgument(f"key {name!r} is in the configuration: change it there")
        if found not in self._kept:
            raise _no_key(entity, name)
        return self._kept[found]

    async def _keep(self, key: AccessKey) -> None:
        await self._write(key, msgspec.json.encode(key))

    async def _write(self, key: AccessKey, content: bytes | None, managed: bool = True) -> None:
        keep = self._bus.broker.namespace.keep_key
        await self._bus.ask(
            lambda reply: keep(key.entity, key.name, content, reply, managed=managed)
        )


def _no_key(entity: str, name: str) -> KeyNotFound:
    return KeyNotFound(f"no key {name!r}" + (f" of {entity}" if entity else ""))


def _manages(key: AccessKey) -> bool:
    """Return whether a key has all rights on the whole namespace."""
    return Right.MANAGE in key.rights and not key.entity


def checked_new(key: AccessKey) -> AccessKey:
    """Return a new key to store, generating missing secrets, or reject it."""
    return _checked(
        msgspec.structs.replace(
            key, primary=key.primary or generate(), secondary=key.secondary or generate()
        )
    )


def _checked(key: AccessKey) -> AccessKey:
    key = check_key(key)
    if key.is_well_known:
        raise InvalidArgument("this key is well known: omit it, and the server generates one")
    return key
