"""Requests and results of access keys, the clock and health."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from onibus.api.log import StampsSetBack
from onibus.core.limits import DAY_MS
from onibus.security.rights import Right

#: The two secrets of a key.
PRIMARY = "primary"
SECONDARY = "secondary"


class KeyIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A key to be made; its secrets are made by the bus."""

    name: str
    rights: list[Right]
    #: the entity it is for; the whole namespace where it is left out
    entity: str = ""


class KeyOut(msgspec.Struct, kw_only=True):
    """A key without its secrets."""

    name: str
    entity: str
    rights: list[str]
    #: it is of the configuration, and is changed there
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
    """Which key of that name is meant."""

    #: the entity it is for; empty for the whole namespace
    entity: str = ""


class Rotation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which of a key's two secrets is replaced."""

    #: primary or secondary
    which: str = PRIMARY
    #: the entity that the key is for; empty for the whole namespace
    entity: str = ""


class TokenIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a token is for, and how long it is good."""

    #: from now on; at most a hundred years
    seconds: Annotated[int, msgspec.Meta(ge=1, le=3_155_760_000)]
    #: the secret that signs it, primary or secondary: it is good until that is rotated
    which: str = PRIMARY
    #: the entity that the key is for; empty for the whole namespace
    entity: str = ""


class TokenOut(msgspec.Struct, kw_only=True):
    """A token, to be shown as `Authorization: Bearer TOKEN`."""

    token: str
    #: seconds since 1970
    expires_at: int


class StampsAhead(msgspec.Struct, frozen=True):
    """A partition whose newest stamp is ahead of the wall clock."""

    entity: str
    partition: int
    ahead_ms: int


class ClockInfo(msgspec.Struct, frozen=True):
    """What the bus takes the time for."""

    #: the machine's wall clock
    wall_ms: int
    #: the wall clock as far as it is proven
    proven_ms: int
    #: the wall clock is plausible: the bus follows it
    sure: bool
    #: partitions whose newest stamp is ahead of the wall clock
    stamps_ahead: list[StampsAhead]


class ClockAccepted(msgspec.Struct):
    """The partitions whose stamps were set back."""

    set_back: list[StampsSetBack]


class MoveClock(msgspec.Struct, forbid_unknown_fields=True):
    """How much time passes at once."""

    advance_ms: Annotated[int, Meta(ge=0, le=3_653 * DAY_MS)]


class ClockOut(msgspec.Struct):
    """What time it is on the bus, in milliseconds since 1970."""

    now_ms: int


class Alive(msgspec.Struct):
    """The process answers."""

    alive: bool = True
