"""Rights, and the one function that grants them.

A shared access key gives rights on the whole namespace, or on one entity and what belongs to it. A
token narrows that to a resource and its parts. Manage includes all others. Everything that
a protocol does for a client asks `Granted.grant` first; a test walks all routes to prove it.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from onibus.core.errors import Forbidden


class Right(Enum):
    """What can be allowed."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"
    #: read metrics, and nothing else; of the whole namespace only
    MONITOR = "Monitor"

    #: There is one of each: it needs no hash of its name, which `Enum` computes in Python.
    __hash__ = object.__hash__


#: Everything: Manage includes Monitor, even in keys that are older than that right.
ALL = frozenset({Right.SEND, Right.LISTEN, Right.MANAGE})


class Granted(msgspec.Struct, frozen=True, eq=False):
    """What somebody who has shown a key or a token may do, and until when."""

    #: the key's name, for people
    name: str
    rights: frozenset[Right]
    #: the entity that the key is for, in lower case; empty for the whole namespace
    entity: str = ""
    #: what the token is for: a path in lower case; empty for the whole namespace
    scope: str = ""
    #: wall time, seconds since 1970
    until: float = float("inf")

    def grant(self, right: Right, entity: str, now: float) -> None:
        """Let somebody do something with an entity ("" for the namespace), or refuse."""
        if now >= self.until:
            raise Forbidden("the token has expired: make a new one")
        if right not in self.rights and Right.MANAGE not in self.rights:
            raise Forbidden(f"key {self.name!r} does not allow {right.value}")
        if self.entity and not belongs(entity, self.entity):
            raise Forbidden(f"key {self.name!r} is for {self.entity} only")
        if self.scope and not below(entity, self.scope):
            raise Forbidden(f"the token is for {self.scope} only")


#: What somebody may do who has shown nothing yet.
NOBODY = Granted("", frozenset())


def below(entity: str, scope: str) -> bool:
    """Tell whether an entity is what a token names, or lies below; segment by segment."""
    entity = entity.lower()
    return entity == scope or entity.startswith(scope + "/")


def belongs(entity: str, owner: str) -> bool:
    """Tell whether an entity is the one that a key is for, or a part of it.

    Parts are subscriptions, and what begins with a $: dead letters, management. A queue orders/eu
    is no part of a queue orders, though a token for orders, made with the namespace's key, reaches
    both.
    """
    entity = entity.lower()
    return entity == owner or entity.startswith((f"{owner}/subscriptions/", f"{owner}/$"))
