"""Enqueue over time: the events that sent rows cause in a partition.

admit → deduplicate → stamp → schedule → expire, as one table of events. An event is a row with the
columns that came with it, and these:

    outcome           string    one of:
        accepted          it is in the queue, with a sequence number and a stamp
        scheduled         it waits for its time, with a sequence number; it gets another then
        duplicate         it was dropped: it repeats `duplicate_of`
        expired           it was accepted, and its time to live is over
        dead-lettered     the same, if the entity dead-letters what expires; or it was rejected,
                          for which a sender would get an error
    sequence_number   int64     null if it got none
    enqueued_time_ms  int64     the stamp; for an expired one, when it expired
    expires_at_ms     int64     null for never
    duplicate_of      int64     the sequence number of the message that a duplicate repeats
    scheduled_number  int64     the sequence number that an accepted row had while it waited
    reason            string    why it was dead-lettered: our error's code, or Service Bus's reason
    description       string

Rows never change: the waiting rows are those scheduled and not accepted yet. An expiry event has
the columns that identify a message, and no body: its accepted event has that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onibus.core.block import NEVER
from onibus.core.errors import Refused
from onibus.core.id_runs import Words
from onibus.core.numbering import Numbering
from onibus.core.path.admit_arrow import PreparedBatch, admit_rows, identity_columns
from onibus.core.path.dead_letter import EXPIRED, EXPIRED_TEXT
from onibus.core.settings import LogSettings
from onibus.core.timeline.agenda import DUE, PLACE
from onibus.core.timeline.chunks import Chunks
from onibus.core.timeline.timeline import ORDINAL, Arrivals, Numbers, Passed, Timeline
from onibus.core.timeline.words import coded, words_of_hashes

ACCEPTED, SCHEDULED, DUPLICATE = "accepted", "scheduled", "duplicate"
GONE, DEAD = "expired", "dead-lettered"

#: The columns that an event adds to those of its row.
EVENT = pa.schema(
    [
        pa.field("outcome", pa.string()),
        pa.field("sequence_number", pa.int64()),
        pa.field("enqueued_time_ms", pa.int64()),
        pa.field("expires_at_ms", pa.int64()),
        pa.field("duplicate_of", pa.int64()),
        pa.field("scheduled_number", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("description", pa.string()),
    ]
)
#: The columns that name a message that expired.
NAMING = ("message_id", "session_id", "partition_key")


class Enqueuing:
    """One partition of an entity with these settings."""

    def __init__(
        self,
        settings: LogSettings,
        index: int,
        chunks: Chunks,
        secret: bytes | None,
        naming: tuple[str, ...] = NAMING,
    ) -> None:
        """Have no state yet. Without a `secret`, the key of hashes, none is kept after a `take`."""
        self._settings = settings
        # Codes stand for one column of ids, not for ids and contents (F7).
        self._secret = b"" if secret is None and settings.content_matches_any_id else secret
        numbering = Numbering(index, settings.enable_partitioning)
        window_ms = settings.duplicate_detection_window_ms
        self.timeline = Timeline(numbering, chunks, window_ms, naming)

    def take(
        self,
        rows: pa.Table,
        messages: pa.RecordBatch,
        times: Numbers,
        until: int = 0,
        refused: Mapping[int, Refused] | None = None,
    ) -> pa.Table:
        """Take rows in order of arrival; return the events of these rows and of waiting ones.

        `messages` are the same rows by the schema of messages. Those in `refused` were found to be
        invalid before, and are dead-lettered.
        """
        prepared, errors, good = self._admit(messages, refused or {})
        admitted, times = rows, times
        if errors:
            admitted, times = rows.take(pa.array(good)), times[good]
        admitted = _with_ids(admitted, prepared)
        words, owners = self._identities(prepared)
        columns = prepared.columns
        passed = self.timeline.take(
            Arrivals(
                admitted,
                times,
                words,
                owners,
                columns.column("scheduled_enqueue_time_ms"),
                prepared.ttls,
            ),
            until,
        )
        tables = [_arrived(admitted, passed)]
        if errors:
            tables.append(_refused(rows, errors))
        if passed.due is not None:
            tables.append(_due(passed))
        if passed.expired is not None:
            tables.append(self._expired(passed.expired, rows.schema))
        return pa.concat_tables(tables)

    def _admit(
        self, messages: pa.RecordBatch, refused: Mapping[int, Refused]
    ) -> tuple[PreparedBatch, dict[int, Refused], npt.NDArray[np.int64]]:
        """Return the admitted rows, the errors of the others, and the positions of the admitted."""
        positions = np.arange(messages.num_rows)
        if refused:
            positions = np.delete(positions, list(refused))
            messages = messages.take(pa.array(positions))
        prepared, found = admit_rows(messages, self._settings, self._secret)
        errors = dict(refused) | {int(positions[at]): error for at, error in found.items()}
        return prepared, errors, np.delete(positions, list(found))

    def _identities(self, prepared: PreparedBatch) -> tuple[Words | None, Numbers | None]:
        """Return what makes rows duplicates, and whose it is."""
        if self._secret is not None:
            owners = np.asarray(prepared.owners, np.int64)
            return (words_of_hashes(prepared.hashes), owners) if len(owners) else (None, None)
        columns = identity_columns(prepared.columns, prepared.keys, self._settings)
        return (None, None) if columns is None else coded(*columns)

    def _expired(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        number = self.timeline.numbering.numbers(rows.column(ORDINAL).to_numpy())
        fields: dict[str, Any] = {
            "outcome": GONE,
            "sequence_number": number,
            "enqueued_time_ms": rows.column(DUE),
            "expires_at_ms": rows.column(DUE),
        }
        dead = getattr(self._settings, "dead_letter_on_expiration", False)
        if dead:
            fields |= {"outcome": DEAD, "reason": EXPIRED, "description": EXPIRED_TEXT}
        bare = rows.drop_columns([ORDINAL, DUE, PLACE])
        return _events(_padded(bare, schema), fields)


def _with_ids(rows: pa.Table, prepared: PreparedBatch) -> pa.Table:
    """Return rows with the ids that a FIFO queue gives (F4)."""
    if "message_id" not in rows.column_names:
        return rows
    at = rows.schema.get_field_index("message_id")
    return rows.set_column(at, rows.schema.field(at), prepared.columns.column("message_id"))


def _arrived(rows: pa.Table, passed: Passed) -> pa.Table:
    outcomes = np.where(passed.dropped, 2, passed.scheduled.astype(np.int8))
    names = pa.DictionaryArray.from_arrays(
        pa.array(outcomes.astype(np.int8)), pa.array([ACCEPTED, SCHEDULED, DUPLICATE])
    )
    none = passed.dropped if passed.dropped.any() else None
    fields = {
        "outcome": names.cast(pa.string()),
        "sequence_number": pa.array(passed.numbers, mask=none),
        "enqueued_time_ms": pa.array(passed.stamps, mask=none),
        "expires_at_ms": pa.array(passed.expires, mask=passed.dropped | (passed.expires == NEVER)),
    }
    if none is not None:
        fields["duplicate_of"] = pa.array(passed.repeats, mask=~passed.dropped)
    return _events(rows, fields)


def _due(passed: Passed) -> pa.Table:
    fields = {
        "outcome": ACCEPTED,
        "sequence_number": passed.due_numbers,
        "enqueued_time_ms": passed.due_stamps,
        "expires_at_ms": pa.array(passed.due_expires, mask=passed.due_expires == NEVER),
        "scheduled_number": passed.due_scheduled,
    }
    return _events(passed.due, fields)


def _refused(rows: pa.Table, errors: Mapping[int, Refused]) -> pa.Table:
    positions = sorted(errors)
    fields = {
        "outcome": DEAD,
        "reason": pa.array([errors[at].code for at in positions], pa.string()),
        "description": pa.array([str(errors[at]) for at in positions], pa.string()),
    }
    return _events(rows.take(pa.array(positions)), fields)


def _events(rows: pa.Table, fields: Mapping[str, Any]) -> pa.Table:
    """Return rows with the columns of events, null if not given; a string fills all rows."""
    for field in EVENT:
        value = fields.get(field.name)
        if value is None:
            column = pa.nulls(rows.num_rows, field.type)
        elif isinstance(value, str):
            column = pa.repeat(value, rows.num_rows)
        elif isinstance(value, np.ndarray):
            column = pa.array(value)
        else:
            column = value
        rows = rows.append_column(field, column)
    return rows


def _padded(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns of a schema; those they lack are null."""
    columns = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
