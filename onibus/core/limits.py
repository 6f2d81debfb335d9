"""Every number of the bus, with its source and its reason.

Sources: [SB] Service Bus documentation, [SQS] the SQS documentation, (ours) our own choice.
"""

from __future__ import annotations

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

#: [SB] Queue and topic paths.
ENTITY_NAME_LENGTH_MAX = 260
#: [SB] MessageId, SessionId, PartitionKey; [SQS] deduplication, group and attempt ids.
ID_LENGTH_MAX = 128
#: What a named reader says of where its rows go.
ADDRESS_LENGTH_MAX = 1_024
#: [SB] Duplicate detection window.
DEDUPLICATION_WINDOW_MS_MIN = 20 * SECOND_MS
DEDUPLICATION_WINDOW_MS_MAX = 7 * DAY_MS
DEDUPLICATION_WINDOW_MS_DEFAULT = 10 * MINUTE_MS
#: [SQS] The deduplication interval of FIFO queues, and how long an attempt id is recorded.
FIFO_INTERVAL_MS = 5 * MINUTE_MS
#: [SB] Lock durations.
LOCK_DURATION_MS_MIN = 1 * SECOND_MS
LOCK_DURATION_MS_MAX = 5 * MINUTE_MS
LOCK_DURATION_MS_DEFAULT = 1 * MINUTE_MS
#: [SQS] Visibility timeouts of FIFO queues reach from none to 12 hours.
VISIBILITY_MS_MAX = 12 * HOUR_MS
#: [SQS] Fair delivery: a group with this many messages in flight can be noisy (B10). It is noisy if
#: it has more than one of NOISY_PARTS equal parts of all messages in flight.
NOISY_COUNT_MIN = 30
NOISY_PARTS = 10
#: (ours) The time over which shares of processing time are judged; AWS says "recent".
NOISY_WINDOW_SECONDS = 60
#: [SQS] A group that sends nothing for this long is not noisy.
NOISY_SILENCE_MS = 5 * MINUTE_MS
#: (ours) Rows, and bytes, that one receive reads to find messages of quiet groups.
FAIR_ROWS_READ_MAX = 1_000
FAIR_BYTES_READ_MAX = 8 << 20
#: (ours) Groups whose processing time one second keeps: a smaller one has less than a thousandth.
FAIR_GROUPS_A_SECOND = 1_000
#: (ours) In flight beyond this, only released messages count for processing time: bounds a sweep.
FAIR_SWEPT_MAX = 100_000
#: [SQS] How long a new message can be made to wait.
DELIVERY_DELAY_MS_MAX = 15 * MINUTE_MS
#: (ours) What protocols keep with a queue: tags and policies of SQS.
ATTRIBUTES_BYTES_MAX = 64 << 10
#: [SB] Deliveries before a message is dead-lettered.
DELIVERY_COUNT_DEFAULT = 10
DELIVERY_COUNT_MAX = 2_147_483_647
#: [SB] Shortest auto-delete-on-idle.
IDLE_MS_MIN = 5 * MINUTE_MS
#: [SB] Partitions of a partitioned entity (Standard tier).
PARTITION_COUNT = 16
#: [SB] Bits of the counter in a sequence number, with and without a partition id above it.
COUNTER_BITS_PARTITIONED = 48
COUNTER_BITS = 63
#: [SB] Quotas of a namespace.
PARTITIONED_ENTITY_COUNT_MAX = 100
ENTITY_COUNT_MAX = 10_000
#: (ours) Of one queue, topic or subscription: named readers, producers, open claims, and pieces
#: staged and not yet published (settable). Each is a row, and takes memory.
READER_COUNT_MAX = 1_000
PRODUCER_COUNT_MAX = 10_000
OPEN_CLAIM_COUNT_MAX = 1_000
STAGED_COUNT_MAX = 10_000
#: [SB] Default and largest size of an entity, or of each partition of a partitioned one.
SIZE_BYTES_DEFAULT = 1 << 30
SIZE_BYTES_MAX = 1 << 44
#: [SB] Premium's default for one message, and its largest.
MESSAGE_BYTES_DEFAULT = 1 << 20
MESSAGE_BYTES_MAX = 100 << 20
#: [SB] Session state is at most as large as one message of the Standard tier.
SESSION_STATE_BYTES_MAX = 256 << 10
#: [SB] What one peek returns at most.
PEEK_BYTES_MAX = 256 << 10
#: [SB] The user metadata of an entity.
METADATA_LENGTH_MAX = 1_024
#: [SB] Dead-letter reason and description.
REASON_LENGTH_MAX = 4_096
#: (ours) Messages in one send, receive or settle call: bounds the work of one slice.
BATCH_COUNT_MAX = 10_000
#: (ours) Sequence numbers in one call, which is atomic: bounds the work of one slice.
NUMBERS_MAX = 2_000
#: (ours) Messages that one receive returns, whatever its limit: the same.
RECEIVED_MAX = 2_000
#: (ours) Messages in one message claim: each has a mark in memory.
CLAIM_COUNT_MAX = 100_000
#: (ours) How long a claim that was not read is kept for its reader.
CLAIM_LEASE_MS_DEFAULT = 1 * MINUTE_MS
CLAIM_LEASE_MS_MIN = 1 * SECOND_MS
CLAIM_LEASE_MS_MAX = 7 * DAY_MS
#: (ours) How long staged rows wait to be published by default.
STAGED_LEASE_MS_DEFAULT = 60 * MINUTE_MS
#: (ours) Bytes of a block; larger batches are cut, so that reading one message stays cheap.
BLOCK_BYTES_MAX = 1 << 20
#: (ours) The same for bulk sends: each block read costs as much as reading a megabyte, and a log
#: that came in bulk is mostly read whole.
BULK_BLOCK_BYTES_MAX = 3 << 20
#: (ours) Dropped duplicates a partition lists (X1).
DUPLICATES_LISTED_MAX = 1_000
#: [SB] Names of subscriptions and rules.
RULE_NAME_LENGTH_MAX = 50
#: [SB] Subscriptions of one topic. (ours) Rules of one subscription.
SUBSCRIPTION_COUNT_MAX = 2_000
RULE_COUNT_MAX = 2_000
#: (ours) The age, and the bytes in each partition, of rows kept for a named reader alone.
READER_AGE_MS_DEFAULT = 7 * DAY_MS
READER_BYTES_DEFAULT = 1 << 30
#: [SB] A transaction's time, and its messages (settable).
TRANSACTION_MS_MAX = 2 * MINUTE_MS
TRANSACTION_COUNT_MAX = 100
#: [SB] Forwarding from entity to entity.
HOP_COUNT_MAX = 4
#: [SB] Characters of an SQL filter, and of an SQL action.
SQL_LENGTH_MAX = 1_024
#: [SB] Statements of an SQL action.
SQL_STATEMENT_COUNT_MAX = 32
#: (ours) Parentheses, NOTs, signs and functions inside each other: bounds the stack.
SQL_DEPTH_MAX = 32
#: (ours) Steps of one filter or action on one message, about 0.1 µs each (core/rules/subject.py):
#: bounds the work that one message can make.
RULE_STEPS_MAX = 100_000
#: (ours) Elements of one IN list.
SQL_LIST_LENGTH_MAX = 256
#: [SB] Size of one property: strings that a filter or action concatenates stay within it.
PROPERTY_LENGTH_MAX = 32 << 10
#: The last millisecond of the year 9999, in milliseconds since 1970: clients read no later time.
LAST_MOMENT_MS = 253_402_300_799_999
