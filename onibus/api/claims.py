"""Claims of a named reader, and the requests that make, read and commit them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from onibus.api.messages import Number
from onibus.core.limits import (
    CLAIM_COUNT_MAX,
    CLAIM_LEASE_MS_DEFAULT,
    CLAIM_LEASE_MS_MAX,
    CLAIM_LEASE_MS_MIN,
)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that were set aside for a named reader."""

    entity: str
    #: tells the entity from another of that name, before or after it
    incarnation: int
    reader: str
    number: int
    #: how many messages it has
    count: int
    #: where they are: (index of the partition, how many of them)
    partitions: tuple[tuple[int, int], ...]
    created_ms: int
    age_ms: int
    #: when it is given back unless it is read before; None once it was
    lease_until_ms: int | None
    read: bool
    #: it is committed for good, and waits for a partition that is offline
    committing: bool


class ClaimReaderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a reader with its claims."""

    reader: str
    incarnation: int
    #: the last number that it was given; 0 for none
    last: int
    #: (first, last) of the numbers that it has committed
    committed: tuple[tuple[int, int], ...]
    #: those that are not
    claims: tuple[Claim, ...]


class ClaimIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much to set aside, and for whom."""

    reader: str
    limit: Annotated[int, Meta(ge=1, le=CLAIM_COUNT_MAX)]
    #: given back unless it is read within that time
    lease_ms: Annotated[int, Meta(ge=CLAIM_LEASE_MS_MIN, le=CLAIM_LEASE_MS_MAX)] = (
        CLAIM_LEASE_MS_DEFAULT
    )
    max_bytes: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    #: refuses a program that lost its hold of the reader
    token: str | None = None


class HoldClaims(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The program that takes hold of a reader."""

    #: of the program; null only looks
    token: str | None = None
    #: the last claim that the program knows
    after: Number = 0


class Claimed(msgspec.Struct):
    """The claim that was made; null where there was nothing to claim."""

    claim: Claim | None


class Claims(msgspec.Struct):
    """Claims of an entity, by reader and number."""

    claims: list[Claim]


class ReadClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which part of a claim to read."""

    partition: Number | None = None
    #: refuses an entity that was made again
    incarnation: Number | None = None
    #: refuses a program that lost its hold of the reader
    token: str | None = None


class ClaimedDeadLetter(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of a claim that goes into the dead-letter queue."""

    sequence_number: Number
    reason: str | None = None
    description: str | None = None


class CommitClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What was not processed; the rest is completed."""

    dead_letters: list[ClaimedDeadLetter] = []
    incarnation: Number | None = None


class ReleaseClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which claim is given back."""

    incarnation: Number | None = None
