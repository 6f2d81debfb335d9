"""Rights, and the one function that grants them.

A shared access key gives rights on the whole namespace, or on one entity and what belongs to it.
Manage includes Send and Listen. Everything that a protocol does for a client asks `Guard.grant`
first; a test walks all routes to prove it.
"""

from __future__ import annotations

from enum import Enum

from onibus.core.errors import Forbidden


class Right(Enum):
    """What can be allowed."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL = frozenset(Right)


class Granted:
    """What somebody who has shown a key or a token may do, and until when."""

    __slots__ = ("name", "rights", "scope", "until")

    def __init__(
        self, name: str, rights: frozenset[Right], scope: str = "", until: float = float("inf")
    ) -> None:
        #: the key's name, for people
        self.name = name
        self.rights = rights
        #: the entity it is about, in lower case; empty for the whole namespace
        self.scope = scope
        #: wall time, seconds since 1970
        self.until = until

    def grant(self, right: Right, entity: str, now: float) -> None:
        """Let somebody do something with an entity ("" for the namespace), or refuse."""
        if now >= self.until:
            raise Forbidden("the token has expired: make a new one")
        if right not in self.rights and Right.MANAGE not in self.rights:
            raise Forbidden(f"key {self.name!r} does not allow {right.value}")
        if self.scope and not covers(self.scope, entity):
            raise Forbidden(f"key {self.name!r} is for {self.scope} only")


def covers(scope: str, entity: str) -> bool:
    """Tell whether an entity is what a scope names, or belongs to it; segment by segment."""
    entity = entity.lower()
    return entity == scope or entity.startswith(scope + "/")
