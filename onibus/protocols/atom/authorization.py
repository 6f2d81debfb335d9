"""Shared access keys of an entity, as its AuthorizationRules."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element

import msgspec

from onibus.core.errors import InvalidArgument
from onibus.protocols.atom.documents import moment
from onibus.protocols.atom.xml import SERVICE_BUS, escaped, tag, text_of, type_of
from onibus.security.kept_keys import KeptKeys, checked_new
from onibus.security.keys import AccessKey
from onibus.security.rights import Right

_KIND = "SharedAccessAuthorizationRule"
#: The rights that the service knows, in the order in which it tells them.
_RIGHTS = (Right.MANAGE, Right.SEND, Right.LISTEN)


def write_keys(keys: Iterable[AccessKey], created_ms: int) -> str:
    """Return the rules that stand for keys, with the keys: only owners get here."""
    return "".join(_write(key, moment(created_ms)) for key in keys)


def _write(key: AccessKey, created: str) -> str:
    rights = [right for right in _RIGHTS if right in key.rights]
    inner = (
        tag("ClaimType", "SharedAccessKey")
        + tag("ClaimValue", "None")
        + tag("Rights", "".join(tag("AccessRights", right.value) for right in rights))
        + tag("CreatedTime", created)
        + tag("ModifiedTime", created)
        + tag("KeyName", escaped(key.name))
        + tag("PrimaryKey", escaped(key.primary))
        + tag("SecondaryKey", escaped(key.secondary))
    )
    return tag("AuthorizationRule", inner, f'i:type="{_KIND}"')


def read_keys(kept: KeptKeys | None, description: Element, entity: str) -> list[AccessKey] | None:
    """Return the keys that a description asks for; None if it names none."""
    rules = description.find(f"{{{SERVICE_BUS}}}AuthorizationRules")
    if rules is None:
        return None
    found = [_read(rule, entity) for rule in rules]
    if found and kept is None:
        raise InvalidArgument("this server has no keys: omit AuthorizationRules")
    if len({key.name for key in found}) < len(found):
        raise InvalidArgument("two authorization rules have the same name")
    return found


def _read(rule: Element, entity: str) -> AccessKey:
    def text(name: str) -> str:
        return text_of(rule.find(f"{{{SERVICE_BUS}}}{name}"))

    if type_of(rule) not in ("", _KIND):
        raise InvalidArgument(f"an authorization rule must be a {_KIND}")
    known = {right.value: right for right in _RIGHTS}
    rights = set()
    for right in rule.iterfind(f"{{{SERVICE_BUS}}}Rights/{{{SERVICE_BUS}}}AccessRights"):
        if text_of(right) not in known:
            raise InvalidArgument("AccessRights must be Send, Listen or Manage")
        rights.add(known[text_of(right)])
    key = AccessKey(
        name=text("KeyName"),
        primary=text("PrimaryKey"),
        secondary=text("SecondaryKey"),
        rights=frozenset(rights),
        entity=entity.lower(),
    )
    # Rejected here, before an entity is created that would lack it.
    checked_new(key)
    return key


def keys_of(kept: KeptKeys | None, entity: str) -> list[AccessKey]:
    """Return the keys of an entity; the secrets of the configuration are for its readers only."""
    if kept is None:
        return []
    return [
        msgspec.structs.replace(key, primary="", secondary="") if configured else key
        for key, configured in kept.list()
        if key.entity == entity.lower()
    ]


async def set_keys(kept: KeptKeys | None, entity: str, wanted: list[AccessKey] | None) -> None:
    """Let an entity have these keys and no others; None changes nothing."""
    there = {key.name: key for key in keys_of(kept, entity)}
    if wanted is None or kept is None:
        return
    for key in wanted:
        before = there.pop(key.name, None)
        if before is None:
            await kept.create(key)
        elif not _same(key, before):
            await kept.replace(key)
    for name in there:
        await kept.delete(entity, name)


def _same(wanted: AccessKey, before: AccessKey) -> bool:
    """Return whether nothing would change; a key that is left out stays."""
    filled = msgspec.structs.replace(
        wanted,
        primary=wanted.primary or before.primary,
        secondary=wanted.secondary or before.secondary,
    )
    return filled == before
