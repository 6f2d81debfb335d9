"""Messages of a claim, as Arrow record batches.

The columns are these, and after them the fields of the messages (core/arrow_block.py) as their
receiver sees them, with the changes by actions of rules and by settling:

    sequence_number            int64, not null
    partition                  int32, not null: the partition's index
    enqueued_time_ms           int64, not null: milliseconds since 1970
    delivery_count             int64, not null
"""

from __future__ import annotations

import pyarrow as pa

from onibus.core.arrow_block import SCHEMA, columns_of
from onibus.core.message import ReceivedMessage

CLAIMED_SCHEMA = pa.schema(
    [
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("enqueued_time_ms", pa.int64(), nullable=False),
        pa.field("delivery_count", pa.int64(), nullable=False),
        *SCHEMA,
    ]
)


def claimed_rows(partition: int, received: list[ReceivedMessage]) -> pa.RecordBatch:
    """Return messages of a partition as a record batch (CLAIMED_SCHEMA)."""
    places = [
        pa.array([one.sequence_number for one in received], pa.int64()),
        pa.array([partition] * len(received), pa.int32()),
        pa.array([one.enqueued_time_ms for one in received], pa.int64()),
        pa.array([one.delivery_count for one in received], pa.int64()),
    ]
    messages = columns_of([one.message for one in received])
    return pa.RecordBatch.from_arrays([*places, *messages], schema=CLAIMED_SCHEMA)
