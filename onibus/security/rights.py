"""Rights, and the one function that grants them.

A shared access key grants rights on the whole namespace, or on one entity and its parts. A token
narrows them to a resource and its parts. Manage includes all others. Every operation of a protocol
checks `Granted.grant` first; a test walks all routes to prove it.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from onibus.core.errors import Forbidden


class Right(Enum):
    """Rights of a key."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"
    #: read metrics only; for the whole namespace only
    MONITOR = "Monitor"

    #: Each right is a singleton: hash by identity, since `Enum` computes hashes in Python.
    __hash__ = object.__hash__


#: All rights: Manage includes Monitor, even in keys older than that right.
ALL = frozenset({Right.SEND, Right.LISTEN, Right.MANAGE})


class Granted(msgspec.Struct, frozen=True, eq=False):
    """Rights of an authenticated caller, and their expiry."""

    #: the key's name, for messages
    name: str
    rights: frozenset[Right]
    #: the key's entity, in lower case; empty for the whole namespace
    entity: str = ""
    #: the token's resource: a path in lower case; empty for the whole namespace
    scope: str = ""
    #: wall time, in seconds since 1970
    until: float = float("inf")

    def grant(self, right: Right, entity: str, now: float) -> None:
        """Check a right on an entity ("" for the namespace), or raise."""
        if now >= self.until:
            raise Forbidden("the token has expired: make a new one")
        if right not in self.rights and Right.MANAGE not in self.rights:
            raise Forbidden(f"key {self.name!r} lacks the right {right.value}")
        if self.entity and not belongs(entity, self.entity):
            raise Forbidden(f"key {self.name!r} is only for {self.entity}")
        if self.scope and not below(entity, self.scope):
            raise Forbidden(f"the token is only for {self.scope}")


#: Rights of a caller without credentials.
NOBODY = Granted("", frozenset())


def below(entity: str, scope: str) -> bool:
    """Return whether an entity is the resource of a token or below it, segment by segment."""
    entity = entity.lower()
    return entity == scope or entity.startswith(scope + "/")


def belongs(entity: str, owner: str) -> bool:
    """Return whether an entity is the entity of a key, or a part of it.

    Parts are subscriptions, and names that begin with $: dead-letter queues and management. A queue
    orders/eu is not a part of a queue orders, although a token for orders, made with the
    namespace's key, covers both.
    """
    entity = entity.lower()
    return entity == owner or entity.startswith((f"{owner}/subscriptions/", f"{owner}/$"))
