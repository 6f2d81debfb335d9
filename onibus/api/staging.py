"""Staged sends: requests and results of staging and publishing batches."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from onibus.api.messages import Number
from onibus.core.limits import STAGED_LEASE_MS_DEFAULT


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was staged and not published yet."""

    producer: str
    batch: int
    task: int
    attempt: int
    piece: int
    count: int
    until_ms: int


class ProducerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who has published to an entity, and how far it has come."""

    producer: str
    #: the last batch that it published
    batch: int
    #: the checkpoint in which its batches are counted; None where nobody named one
    checkpoint: str | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What publishing a batch did."""

    #: messages stored by this call: none where the batch was published before
    accepted: int = 0
    duplicates: int = 0
    #: the batch was the producer's last one already
    again: bool = False


class StageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whose rows these are."""

    producer: str
    batch: Number
    task: Number
    attempt: Number
    #: which piece of the attempt, from 0
    piece: Number = 0
    #: what is not published within that time goes
    lease_ms: Number = STAGED_LEASE_MS_DEFAULT


class Publish(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which attempts of a batch become visible, in their order; the rest goes."""

    producer: str
    batch: Number
    #: each is [task, attempt] or [task, attempt, number of pieces]
    attempts: list[Annotated[list[Number], Meta(min_length=2, max_length=3)]]
    #: in which the batches are counted, from 0 and without a gap; another one is refused
    checkpoint: str | None = None
    #: the producer's last batch again counts as published, whatever its rows are
    any_content: bool = False


class Discard(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What of a producer is forgotten: one batch, or all."""

    producer: str
    batch: Number | None = None


class StagedOut(msgspec.Struct):
    """What is staged and not published."""

    staged: list[Staged]


class Producers(msgspec.Struct):
    """Who has published to an entity."""

    producers: list[ProducerInfo]


class Forgotten(msgspec.Struct):
    """What forgetting a producer did."""

    #: it had published or staged something
    known: bool
