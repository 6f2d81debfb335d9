"""Claims of a named reader, and the requests that make, read and commit them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from onibus.api.messages import Number, WaitMs
from onibus.core.limits import (
    CLAIM_COUNT_MAX,
    CLAIM_LEASE_MS_DEFAULT,
    CLAIM_LEASE_MS_MAX,
    CLAIM_LEASE_MS_MIN,
)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Messages reserved for a named reader."""

    entity: str
    #: distinguishes the entity from a deleted one of the same name
    incarnation: int
    reader: str
    number: int
    #: number of its messages
    count: int
    #: (index of the partition, number of messages) of each
    partitions: tuple[tuple[int, int], ...]
    created_ms: int
    age_ms: int
    #: when its lease expires if it is not read; None once it was
    lease_until_ms: int | None
    read: bool
    #: committed, and not yet applied in every partition
    committing: bool


class ClaimReaderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a reader with its claims."""

    reader: str
    incarnation: int
    #: the last claim number of the reader; 0 for none
    last: int
    #: (first, last) of each run of committed numbers
    committed: tuple[tuple[int, int], ...]
    #: claims that are not committed
    claims: tuple[Claim, ...]


class ClaimIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The reader of a claim, and its size."""

    reader: str
    limit: Annotated[int, Meta(ge=1, le=CLAIM_COUNT_MAX)]
    #: released unless it is read within this time
    lease_ms: Annotated[int, Meta(ge=CLAIM_LEASE_MS_MIN, le=CLAIM_LEASE_MS_MAX)] = (
        CLAIM_LEASE_MS_DEFAULT
    )
    max_bytes: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    #: rejects a program that lost its hold of the reader
    token: str | None = None
    #: rejects a recreated entity
    incarnation: Number | None = None
    wait_ms: WaitMs = 0


class HoldClaims(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The program to which a reader is assigned."""

    #: of the program; null changes nothing
    token: str | None = None
    #: the last claim that the program knows
    after: Number = 0
    #: the id of the program's query, and the first claim of that query's checkpoint
    query: str | None = None
    first: Number = 0


class Claimed(msgspec.Struct):
    """The claim; null if the entity has no active message."""

    claim: Claim | None


class Claims(msgspec.Struct):
    """Claims of an entity, by reader and number."""

    claims: list[Claim]


class ReadClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The part of a claim to read."""

    partition: Number | None = None
    #: rejects a recreated entity
    incarnation: Number | None = None
    #: rejects a program that lost its hold of the reader
    token: str | None = None


class ClaimedDeadLetter(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of a claim to dead-letter."""

    sequence_number: Number
    reason: str | None = None
    description: str | None = None


class CommitClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages of a claim to dead-letter; the others are completed."""

    dead_letters: list[ClaimedDeadLetter] = []
    incarnation: Number | None = None


class ReleaseClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The claim to release."""

    incarnation: Number | None = None
