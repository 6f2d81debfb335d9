"""Requests and results of sends, receives, settlements, transactions, peeks and purges."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from onibus.api.messages import (
    Count,
    FilterIn,
    Json,
    MessageIn,
    MessageOut,
    Milliseconds,
    Numbers,
    SentOut,
    Start,
    Token,
    Tokens,
    WaitMs,
)
from onibus.core.limits import BATCH_COUNT_MAX

#: Messages that one call moves at most.
MOVES_MAX = 20_000


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to store atomically."""

    messages: Annotated[list[MessageIn], Meta(min_length=1, max_length=BATCH_COUNT_MAX)]


class SentBatchOut(msgspec.Struct, omit_defaults=True):
    """The results of a batch, in order.

    Arrow requests get only the counts. With `Accept: application/vnd.apache.arrow.stream` the
    response has the columns sequence_number and duplicate_of instead.
    """

    accepted: int
    duplicates: int
    sent: list[SentOut] = []


class Schedule(msgspec.Struct, forbid_unknown_fields=True):
    """A message, and its scheduled time."""

    message: MessageIn
    due_ms: Milliseconds


class MessageNumbers(msgspec.Struct, forbid_unknown_fields=True):
    """Sequence numbers of messages; the operation is atomic."""

    numbers: Numbers


class Receive(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The number of messages to receive, and how long to wait for the first."""

    limit: Count = 1
    wait_ms: WaitMs = 0
    dead_letters: bool = False
    #: receive and delete; otherwise the messages are locked until they are settled
    delete: bool = False


class ReceiveDeferred(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Deferred messages to receive, atomically."""

    numbers: Numbers
    dead_letters: bool = False
    delete: bool = False


class ReceiveFifo(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The number of messages to receive from a FIFO queue (F9, F10)."""

    limit: Count = 1
    wait_ms: WaitMs = 0
    #: visibility timeout; default: the lock duration of the queue
    visibility_ms: int | None = None
    #: the same id returns the same messages while they are in flight; default: a generated one
    attempt_id: str | None = None


class FifoMessages(msgspec.Struct):
    """Messages of a FIFO queue, and the attempt id that returns them again."""

    messages: list[MessageOut]
    attempt_id: str


class Visibility(msgspec.Struct, forbid_unknown_fields=True):
    """The visibility timeout of a message, from now; 0 makes it visible."""

    token: Token
    visibility_ms: int


class LockedUntil(msgspec.Struct):
    """When the lock expires."""

    locked_until_ms: int


class Complete(msgspec.Struct, forbid_unknown_fields=True):
    """Lock tokens of the messages to complete."""

    tokens: Tokens


class GiveBack(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message to abandon or defer, optionally with a delay."""

    token: Token
    delay_ms: Milliseconds = 0
    #: changed properties
    properties: dict[str, Json] | None = None


class DeadLetter(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message to dead-letter, and the reason."""

    token: Token
    reason: str | None = None
    description: str | None = None
    properties: dict[str, Json] | None = None


class Held(msgspec.Struct, forbid_unknown_fields=True):
    """A locked message."""

    token: Token


class Peek(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to start, and which messages to show."""

    #: the first sequence number to show
    start: Start = 0
    limit: Count = 100
    dead_letters: bool = False
    where: FilterIn | None = None


class Purge(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages to delete; default: all that no receiver holds."""

    where: FilterIn | None = None
    #: discard their recorded ids, so duplicates are accepted again
    forget_ids: bool = False
    #: count the messages and delete none
    dry_run: bool = False


class Counted(msgspec.Struct):
    """A number of messages or pieces."""

    count: int


class Duplicate(msgspec.Struct):
    """A message that was dropped as a duplicate (X1)."""

    message_id: str | None
    time_ms: int
    #: the sequence number of the original
    duplicate_of: int


class Duplicates(msgspec.Struct):
    """The latest dropped duplicates, oldest first."""

    duplicates: list[Duplicate]


class Resubmit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Dead-lettered messages to resubmit: by sequence number, or by filter."""

    numbers: Numbers | None = None
    where: FilterIn | None = None
    #: the destination; default: the entity they came from
    to: str | None = None
    #: ends the call once this many messages were resubmitted or rejected; default: all
    limit: Annotated[int, Meta(ge=1)] | None = None
    #: change nothing
    dry_run: bool = False


class Move(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Active messages to move: by sequence number, or by filter."""

    #: the queue or topic that gets them
    to: str
    numbers: Numbers | None = None
    where: FilterIn | None = None
    #: how many at most, moved or rejected
    limit: Annotated[int, Meta(ge=1, le=MOVES_MAX)] = MOVES_MAX
    #: change nothing
    dry_run: bool = False


class Moved(msgspec.Struct):
    """A resubmitted or moved message, and its new sequence number; null in a dry run."""

    sequence_number: int
    new_sequence_number: int | None


class NotMoved(msgspec.Struct):
    """A message that stays where it is, and the reason."""

    sequence_number: int
    reason: str


class ResubmittedOut(msgspec.Struct):
    """The result of a resubmission or a move."""

    moved: list[Moved]
    refused: list[NotMoved]


class Alarms(msgspec.Struct):
    """Problems of stores and partitions since the server started."""

    alarms: list[str]


class SendInside(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to send to one entity."""

    entity: str
    messages: Annotated[list[MessageIn], Meta(min_length=1)]


class SettleInside(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A settlement of locked messages."""

    entity: str
    tokens: Tokens
    verb: Literal["complete", "abandon", "defer", "dead-letter"] = "complete"
    #: for abandon and defer
    delay_ms: Milliseconds = 0
    #: for dead-letter
    reason: str | None = None
    description: str | None = None
    #: changed properties; not for complete
    properties: dict[str, Json] | None = None


class TransactionIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sends and settlements of one transaction."""

    sends: list[SendInside] = []
    settlements: list[SettleInside] = []


class TransactionOut(msgspec.Struct):
    """The results of the sends, in order."""

    sent: list[SentOut]


class Resubmitted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a resubmission or a move."""

    #: old sequence number → new one; None in a dry run
    moved: dict[int, int | None]
    #: old sequence number → why the destination rejects it; it stays where it is
    refused: dict[int, str]
