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


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that are stored together, or not at all."""

    messages: Annotated[list[MessageIn], Meta(min_length=1, max_length=BATCH_COUNT_MAX)]


class SentBatchOut(msgspec.Struct, omit_defaults=True):
    """What became of the messages of a batch, in their order.

    Of rows in Arrow the counts only; with `Accept: application/vnd.apache.arrow.stream` the answer
    has the columns sequence_number and duplicate_of instead.
    """

    accepted: int
    duplicates: int
    sent: list[SentOut] = []


class Schedule(msgspec.Struct, forbid_unknown_fields=True):
    """A message, and the moment for which it is stored."""

    message: MessageIn
    due_ms: Milliseconds


class MessageNumbers(msgspec.Struct, forbid_unknown_fields=True):
    """The sequence numbers of messages: all of them are meant, or none."""

    numbers: Numbers


class Receive(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much to receive, and for how long to wait for it."""

    limit: Count = 1
    wait_ms: WaitMs = 0
    dead_letters: bool = False
    #: messages are gone when they are received; otherwise they are locked until settled
    delete: bool = False


class ReceiveDeferred(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which deferred messages to receive: all of them, or none."""

    numbers: Numbers
    dead_letters: bool = False
    delete: bool = False


class ReceiveFifo(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much to receive from a FIFO queue (F9, F10)."""

    limit: Count = 1
    wait_ms: WaitMs = 0
    #: how long messages stay in flight; the queue's own lock duration if left out
    visibility_ms: int | None = None
    #: the same id gives the same messages again while they are in flight; one is made if left out
    attempt_id: str | None = None


class FifoMessages(msgspec.Struct):
    """Messages of a FIFO queue, and the attempt id that gives them again."""

    messages: list[MessageOut]
    attempt_id: str


class Visibility(msgspec.Struct, forbid_unknown_fields=True):
    """For how long a message stays in flight from now on; 0 gives it back."""

    token: Token
    visibility_ms: int


class LockedUntil(msgspec.Struct):
    """Until when something is held."""

    locked_until_ms: int


class Complete(msgspec.Struct, forbid_unknown_fields=True):
    """The tokens of messages that were processed."""

    tokens: Tokens


class GiveBack(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message that is given back or set aside, now or for a while."""

    token: Token
    delay_ms: Milliseconds = 0
    #: properties that change
    properties: dict[str, Json] | None = None


class DeadLetter(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message that goes into the dead-letter queue, and why."""

    token: Token
    reason: str | None = None
    description: str | None = None
    properties: dict[str, Json] | None = None


class Held(msgspec.Struct, forbid_unknown_fields=True):
    """A message that is held."""

    token: Token


class Peek(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to begin, and which messages to show."""

    #: the sequence number from which on messages are shown
    start: Start = 0
    limit: Count = 100
    dead_letters: bool = False
    where: FilterIn | None = None


class Purge(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages to delete; all that nobody holds if none are named."""

    where: FilterIn | None = None
    #: duplicates of what was sent are then let in again
    forget_ids: bool = False


class Counted(msgspec.Struct):
    """How many."""

    count: int


class Duplicate(msgspec.Struct):
    """A message that was dropped as a duplicate (X1)."""

    message_id: str | None
    time_ms: int
    #: the number of the message that it repeats
    duplicate_of: int


class Duplicates(msgspec.Struct):
    """The last dropped duplicates, the oldest first."""

    duplicates: list[Duplicate]


class Resubmit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to send again: by numbers, or all that a filter means."""

    numbers: Numbers | None = None
    where: FilterIn | None = None
    #: where to; to where they came from if left out
    to: str | None = None
    #: only tell what would be done
    dry_run: bool = False


class Moved(msgspec.Struct):
    """A dead letter that was sent again, under another number; null in a dry run."""

    sequence_number: int
    new_sequence_number: int | None


class NotMoved(msgspec.Struct):
    """A dead letter that stays one, and why."""

    sequence_number: int
    reason: str


class ResubmittedOut(msgspec.Struct):
    """What became of dead letters that were to be sent again."""

    moved: list[Moved]
    refused: list[NotMoved]


class Alarms(msgspec.Struct):
    """What went wrong with stores and partitions since the server started."""

    alarms: list[str]


class SendInside(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that are sent to one entity."""

    entity: str
    messages: Annotated[list[MessageIn], Meta(min_length=1)]


class SettleInside(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What becomes of messages that are held."""

    entity: str
    tokens: Tokens
    verb: Literal["complete", "abandon", "defer", "dead-letter"] = "complete"
    #: of abandon and defer
    delay_ms: Milliseconds = 0
    #: of dead-letter
    reason: str | None = None
    description: str | None = None
    #: properties that change; of all but complete
    properties: dict[str, Json] | None = None


class TransactionIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sends and settlements that happen together or not at all."""

    sends: list[SendInside] = []
    settlements: list[SettleInside] = []


class TransactionOut(msgspec.Struct):
    """What became of the messages that were sent, in their order."""

    sent: list[SentOut]


class Resubmitted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of dead letters that were to be sent again."""

    #: old sequence number → new one; None in a dry run
    moved: dict[int, int | None]
    #: old sequence number → why the destination does not take it; it stays a dead letter
    refused: dict[int, str]
