"""Requests and results of access keys, the clock and health."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from onibus.api.log import StampsSetBack
from onibus.core.limits import DAY_MS
from onibus.security.rights import Right

#: Names of a key's two secrets.
PRIMARY = "primary"
SECONDARY = "secondary"


class KeyIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A key to create; the bus generates its secrets."""

    name: str
    rights: list[Right]
    #: the entity it applies to; default: the whole namespace
    entity: str = ""


class KeyOut(msgspec.Struct, kw_only=True):
    """A key without its secrets."""

    name: str
    entity: str
    rights: list[str]
    #: part of the configuration, which must be edited to change it
    configured: bool


class KeysOut(msgspec.Struct):
    """All keys, by entity and name."""

    keys: list[KeyOut]


class KeyWithSecrets(msgspec.Struct, kw_only=True):
    """A key with its secrets."""

    name: str
    entity: str
    rights: list[str]
    primary: str
    secondary: str


class Whose(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The scope of a key."""

    #: the entity it applies to; empty for the whole namespace
    entity: str = ""


class Rotation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The secret of a key to replace."""

    #: primary or secondary
    which: str = PRIMARY
    #: the entity that the key applies to; empty for the whole namespace
    entity: str = ""


class TokenIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The scope of a token, and how long it is valid."""

    #: from now; at most a hundred years
    seconds: Annotated[int, msgspec.Meta(ge=1, le=3_155_760_000)]
    #: the secret that signs it, primary or secondary: rotating it ends the token
    which: str = PRIMARY
    #: the entity that the key applies to; empty for the whole namespace
    entity: str = ""


class TokenOut(msgspec.Struct, kw_only=True):
    """A token for `Authorization: Bearer TOKEN`."""

    token: str
    #: seconds since 1970
    expires_at: int


class StampsAhead(msgspec.Struct, frozen=True):
    """A partition whose newest timestamp is ahead of the wall clock."""

    entity: str
    partition: int
    ahead_ms: int


class ClockInfo(msgspec.Struct, frozen=True):
    """The time that the bus uses."""

    #: the system clock
    wall_ms: int
    #: the time that the server has confirmed
    proven_ms: int
    #: whether the wall clock is plausible, so that the bus follows it
    sure: bool
    #: partitions whose newest timestamp is ahead of the wall clock
    stamps_ahead: list[StampsAhead]


class ClockAccepted(msgspec.Struct):
    """The partitions whose timestamps were set back."""

    set_back: list[StampsSetBack]


class MoveClock(msgspec.Struct, forbid_unknown_fields=True):
    """How far to move the clock."""

    advance_ms: Annotated[int, Meta(ge=0, le=3_653 * DAY_MS)]


class ClockOut(msgspec.Struct):
    """The time of the bus, in milliseconds since 1970."""

    now_ms: int


class Alive(msgspec.Struct):
    """The process responds."""

    alive: bool = True
