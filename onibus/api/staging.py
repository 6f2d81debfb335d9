"""Staged sends: requests and results of staging and publishing batches."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from onibus.api.messages import Number
from onibus.core.limits import STAGED_LEASE_MS_DEFAULT


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """A staged piece that is not published yet."""

    producer: str
    batch: int
    task: int
    attempt: int
    piece: int
    count: int
    until_ms: int


class ProducerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A producer of an entity, and its progress."""

    producer: str
    #: the last batch that it published
    batch: int
    #: the checkpoint that counts its batches; None if it named none
    checkpoint: str | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The result of publishing a batch."""

    #: messages stored by this call; 0 if the batch was published before
    accepted: int = 0
    duplicates: int = 0
    #: whether the batch was already the producer's last one
    again: bool = False


class StageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The producer, batch, task and attempt of the rows."""

    producer: str
    batch: Number
    task: Number
    attempt: Number
    #: number of the piece in the attempt, from 0
    piece: Number = 0
    #: the rows are deleted unless they are published within this time
    lease_ms: Number = STAGED_LEASE_MS_DEFAULT


class Publish(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Attempts of a batch to publish, in order; other staged rows are deleted."""

    producer: str
    batch: Number
    #: each is [task, attempt] or [task, attempt, number of pieces]
    attempts: list[Annotated[list[Number], Meta(min_length=2, max_length=3)]]
    #: counts the batches from 0 without a gap; a different checkpoint is rejected
    checkpoint: str | None = None
    #: accept the producer's last batch again, even with different rows
    any_content: bool = False


class Discard(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The staged rows to delete: of one batch, or of all."""

    producer: str
    batch: Number | None = None


class StagedOut(msgspec.Struct):
    """Staged pieces that are not published."""

    staged: list[Staged]


class Producers(msgspec.Struct):
    """The producers of an entity."""

    producers: list[ProducerInfo]


class Forgotten(msgspec.Struct):
    """The result of resetting a producer."""

    #: whether the producer had published or staged rows
    known: bool
