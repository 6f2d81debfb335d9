"""Sending: one message, a batch, scheduled or in bulk.

A message without a MessageId gets one here (D11), so that a send whose response was lost can be
repeated: with duplicate detection it is stored once (D1). `make_id=False` sends it without one, for
FIFO queues that deduplicate by content (F4). Such a send is not repeated when its response is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onibus.api.delivery import SentBatchOut
from onibus.api.messages import SentOut
from onibus.api.wire import ARROW
from onibus.client.asking import path_of, post, post_arrow
from onibus.client.blocking.caller import Caller
from onibus.client.convert import (
    arrow_bytes,
    arrow_table,
    message_json,
    rows_with_ids,
    sent_of,
    with_id,
)
from onibus.core.message import Message, Sent, SentBatch

if TYPE_CHECKING:
    import pyarrow as pa


class SendCalls(Caller):
    """Operations of a sender."""

    def send(self, entity: str, message: Message, *, make_id: bool = True) -> Sent:
        """Store a message; return once it is durable."""
        given = with_id(message) if make_id else message
        path = path_of("entities", entity, "messages")
        ask = post(path, message_json(given), repeats=given.message_id is not None)
        told: SentOut = self.ask(ask, SentOut)
        return sent_of(told, made=given is not message)

    def send_batch(
        self, entity: str, messages: Sequence[Message], *, make_id: bool = True
    ) -> list[Sent]:
        """Store messages together; return their outcomes in order."""
        given = [with_id(one) for one in messages] if make_id else list(messages)
        body = {"messages": [message_json(one) for one in given]}
        repeats = all(one.message_id is not None for one in given)
        ask = post(path_of("entities", entity, "batch"), body, repeats=repeats)
        told: SentBatchOut = self.ask(ask, SentBatchOut)
        pairs = zip(told.sent, given, messages, strict=True)
        return [sent_of(one, made=sent is not message) for one, sent, message in pairs]

    def send_arrow(
        self, entity: str, rows: pa.RecordBatch | pa.Table, *, make_id: bool = True
    ) -> SentBatch:
        """Store rows, whose columns are fields of Message, atomically."""
        given = rows_with_ids(rows) if make_id else rows
        path = path_of("entities", entity, "batch")
        ask = post_arrow(path, arrow_bytes(given), accept=ARROW, repeats=make_id)
        told = arrow_table((self.answer(ask)).body)
        numbers = told.column("sequence_number").combine_chunks()
        duplicates = told.column("duplicate_of").combine_chunks()
        accepted = duplicates.null_count
        return SentBatch(accepted, len(duplicates) - accepted, numbers, duplicates)

    def schedule(self, entity: str, message: Message, due_ms: int) -> int:
        """Schedule a message for a time in milliseconds since 1970; return the number to cancel it.

        A time in the past enqueues immediately.
        """
        body = {"message": message_json(with_id(message)), "due_ms": due_ms}
        told: SentOut = self.ask(post(path_of("entities", entity, "schedule"), body), SentOut)
        return told.sequence_number

    def cancel_scheduled(self, entity: str, numbers: Sequence[int]) -> None:
        """Cancel scheduled messages; if one is not found, cancel none."""
        path = path_of("entities", entity, "cancel-scheduled")
        self.answer(post(path, {"numbers": list(numbers)}))
