"""The content of rows as their sender gave them, as one number whatever their order (R6).

Each row is hashed on its own, and the hashes are summed. So rows that are staged again in other
pieces, in another order or by other tasks have the same digest, and a row that is missing, changed
or repeated gives another one. Messages and columns with the same fields have the same digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from xxhash import xxh3_64_intdigest

from onibus.core.message import Message, encode_properties

if TYPE_CHECKING:
    import pyarrow as pa

_LIMIT = 1 << 64
#: The fields of a message before its properties and its body, in the order of the columns.
_FIELDS = attrgetter(
    *("message_id", "session_id", "partition_key", "subject", "correlation_id", "content_type"),
    *("to", "reply_to", "reply_to_session_id", "time_to_live_ms", "scheduled_enqueue_time_ms"),
    *("format", "enqueued_sequence_number", "hop_count"),
)
_encode = msgspec.msgpack.Encoder().encode


def add(digests: Iterable[int]) -> int:
    """Return the digest of all rows of several digests."""
    return sum(digests) % _LIMIT


def of_messages(messages: Sequence[Message]) -> int:
    """Return the digest of messages."""
    return _of_rows(map(_values, messages))


def of_columns(batch: pa.RecordBatch) -> int:
    """Return the digest of a batch that `conform` has returned (core/arrow_block.py)."""
    import pyarrow as pa

    from onibus.core.path.admit_arrow import raw_values

    columns: list[Iterable[Any]] = []
    for column in batch.columns:
        if column.null_count == len(column):
            columns.append(repeat(None, len(column)))
        else:
            columns.append(column.to_pylist() if column.type == pa.int64() else raw_values(column))
    return _of_rows(zip(*columns, strict=True))


def _of_rows(rows: Iterable[tuple[Any, ...]]) -> int:
    return add(xxh3_64_intdigest(_encode(row)) for row in rows)


def _values(message: Message) -> tuple[Any, ...]:
    fields = [one.encode() if type(one) is str else one for one in _FIELDS(message)]
    properties = encode_properties(message.properties) if message.properties else None
    values = (*fields, properties, message.body)
    # Only AMQP clients can read it, and no column has it.
    return (*values, message.as_sent) if message.as_sent else values
