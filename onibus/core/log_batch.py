"""Rows of the log, and outcomes, as Arrow record batches.

Rows of the log have the columns of messages (core/arrow_block.py), and before these:

    sequence_number            int64, not null
    partition                  int32, not null: the partition's index
    enqueued_time_ms           int64, not null: milliseconds since 1970
    expires_at_ms              int64: the enqueued time plus the time to live; null for never
    kind                       string, not null: "message"; "scheduled", the marker of a message
                               that becomes a separate row at its time; or "copy", a further
                               copy that a rule's action made for one subscription

They never change. The outcomes record what happens to a message later (R3, R4):

    number                     int64, not null: the outcome's own number, from 1 without gaps
    sequence_number            int64, not null: of the message
    outcome                    string, not null: completed, dead-lettered, expired, cancelled,
                               activated, forwarded or purged
    time_ms                    int64, not null: milliseconds since 1970
    reason                     string: why it was dead-lettered
    description                string

An Arrow block becomes one batch, without a copy of its columns. Blocks of rows, which may be small,
are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onibus.core.arrow_block import SCHEMA, columns_of, shown_expiry
from onibus.core.block import ARROW, Block
from onibus.core.errors import InvalidArgument
from onibus.core.message import Message
from onibus.core.numbering import Numbering
from onibus.core.outcomes import Fate, OutcomePlace, decode

#: The columns of rows of the log.
READ_SCHEMA = pa.schema(
    [
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("enqueued_time_ms", pa.int64(), nullable=False),
        pa.field("expires_at_ms", pa.int64()),
        pa.field("kind", pa.string(), nullable=False),
        *SCHEMA,
    ]
)
#: The columns of outcomes.
OUTCOME_SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("time_ms", pa.int64(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("description", pa.string()),
    ]
)
#: The words for kinds of rows, and for fates, by their stored values.
_KINDS = pa.array(["message", "scheduled", "copy", "message"])
_FATES = pa.array([fate.name.lower().replace("_", "-") for fate in Fate])

#: A block and the positions, from and up to, of the rows that are wanted.
Chosen = tuple[Block, int, int]


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of rows with these columns only, in their order; None means all."""
    if columns is None:
        return READ_SCHEMA
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise InvalidArgument("columns must be a list of names, or None for all")
    for name in columns:
        if name not in READ_SCHEMA.names or list(columns).count(name) > 1:
            raise InvalidArgument(
                f"unknown or repeated column {name!r}: use {', '.join(READ_SCHEMA.names)}"
            )
    return pa.schema([READ_SCHEMA.field(name) for name in columns])


class BatchMaker:
    """Makes record batches of the rows of one partition."""

    def __init__(self, index: int, numbering: Numbering, schema: pa.Schema) -> None:
        self._index = index
        self._numbering = numbering
        self._schema = schema
        self._messages = any(name in SCHEMA.names for name in schema.names)

    def __call__(self, chosen: list[Chosen]) -> list[pa.RecordBatch]:
        """Return the rows, decoded and verified, in as few batches as costs no copy."""
        batches = []
        gathered: list[Chosen] = []
        for one in chosen:
            if one[0].encoding == ARROW:
                if gathered:
                    batches.append(self._of_rows(gathered))
                    gathered = []
                batches.append(self._of_arrow(*one))
            else:
                gathered.append(one)
        if gathered:
            batches.append(self._of_rows(gathered))
        return batches

    def _of_arrow(self, block: Block, start: int, end: int) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        if self._messages:
            batch = block.arrow_batch().slice(start, end - start)
            columns = dict(zip(SCHEMA.names, batch.columns, strict=True))
        return self._batch(block.index[start:end], columns)

    def _of_rows(self, gathered: list[Chosen]) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        if self._messages:
            messages: list[Message] = []
            for block, start, end in gathered:
                messages += block.messages(start, end)
            columns = dict(zip(SCHEMA.names, columns_of(messages), strict=True))
        index = np.concatenate([block.index[start:end] for block, start, end in gathered])
        return self._batch(index, columns)

    def _batch(self, index: npt.NDArray[Any], columns: dict[str, pa.Array]) -> pa.RecordBatch:
        for name in self._schema.names:
            if name not in columns:
                columns[name] = self._place(name, index)
        wanted = [columns[name] for name in self._schema.names]
        return pa.RecordBatch.from_arrays(wanted, schema=self._schema)

    def _place(self, name: str, index: npt.NDArray[Any]) -> pa.Array:
        """Return a column of what the index has of rows."""
        if name == "sequence_number":
            return pa.array(self._numbering.numbers(index["ordinal"]))
        if name == "partition":
            return pa.array(np.full(len(index), self._index, np.int32))
        if name == "enqueued_time_ms":
            return pa.array(np.ascontiguousarray(index["stamp"]))
        if name == "kind":
            kinds = np.ascontiguousarray(index["kind"])
            # Most blocks hold only messages.
            return _KINDS.take(pa.array(kinds)) if kinds.any() else pa.repeat(_KINDS[0], len(kinds))
        return shown_expiry(index)


def outcome_batch(
    rows: list[tuple[OutcomePlace, bytes]], start: int, end: int, numbering: Numbering
) -> pa.RecordBatch:
    """Return the outcomes from start on and below end that rows of the table have."""
    ordinals, fates, times = [], [], []
    reasons: list[Any] = []
    for place, entries in rows:
        count = place.last - place.first + 1
        some, became, given = decode(entries, count)
        ordinals.append(some)
        fates.append(became)
        times.append(np.full(count, place.stamp, np.int64))
        following = iter(given)
        reasons += [
            next(following) if fate == Fate.DEAD_LETTERED else (None, None)
            for fate in became.tolist()
        ]
    first, last = rows[0][0].first, rows[-1][0].last
    columns = [
        pa.array(np.arange(first, last + 1)),
        pa.array(numbering.numbers(np.concatenate(ordinals))),
        _FATES.take(pa.array(np.concatenate(fates))),
        pa.array(np.concatenate(times)),
        pa.array([reason for reason, _ in reasons], pa.string()),
        pa.array([description for _, description in reasons], pa.string()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=OUTCOME_SCHEMA)
    offset = max(start - first, 0)
    return batch.slice(offset, min(end, last + 1) - first - offset)
