"""Settling received messages: deletion, and changes of their visibility timeout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from onibus.core.errors import (
    InvalidArgument,
    LockLost,
    MessageNotFound,
    OnibusError,
    UnknownToken,
)
from onibus.directory.entity import Entity
from onibus.gateway import settling
from onibus.protocols.sqs import errors, handles
from onibus.protocols.sqs.actions import naming
from onibus.protocols.sqs.actions.checking import check_between, check_entries, failed
from onibus.protocols.sqs.call import Action, SqsCall
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.shapes import (
    BatchOut,
    DeleteBatchIn,
    DoneEntry,
    HandleIn,
    VisibilityBatchIn,
    VisibilityIn,
)
from onibus.security.rights import Right
from onibus.shard.replies import Reply

_DELETE = "DeleteMessageBatchRequestEntry"
_VISIBILITY = "ChangeMessageVisibilityBatchRequestEntry"

#: Translates an error of the bus into one of SQS; returns None for other errors.
Refused = Callable[[str | None, BaseException], BaseException | None]


def delete_message(call: SqsCall, given: HandleIn) -> None:
    """Delete a message."""
    entity = call.queues.by_url(given.queue_url)
    token = handles.decode(given.receipt_handle, entity)

    def told(refusals: list[LockLost | None]) -> None:
        (refusal,) = refusals
        if refusal is not None:
            error = _not_deleted(call, given.receipt_handle, refusal)
            if error is not None:
                raise error

    call.ask(lambda reply: settling.delete_each(call.bus.broker, entity.name, [token], reply), told)


def _not_deleted(call: SqsCall, handle: str | None, error: BaseException) -> BaseException | None:
    if isinstance(error, UnknownToken):
        return handles.invalid(handle)
    if isinstance(error, LockLost):
        if not call.app.profile.refuses_expired_handles:
            return None
        return errors.invalid("ReceiptHandle", handle, "The receipt handle has expired.")
    return error


def change_visibility(call: SqsCall, given: VisibilityIn) -> None:
    """Hide a message from now on for so long; 0 shows it."""
    entity = call.queues.by_url(given.queue_url)
    token = handles.decode(given.receipt_handle, entity)
    milliseconds = _seconds(given.visibility_timeout) * 1_000

    def told(results: list[BaseException | None]) -> None:
        (refusal,) = results
        if refusal is not None:
            error = _not_changed(given.receipt_handle, refusal)
            if error is not None:
                raise error

    call.ask(partial(_change, call, entity, [token], [milliseconds]), told)


def _change(
    call: SqsCall, entity: Entity, tokens: list[bytes], durations_ms: list[int], reply: Reply
) -> None:
    earlier = call.app.profile.accepts_earlier_handles
    settling.change_visibility(
        call.bus.broker, entity.name, tokens, durations_ms, reply, accepts_earlier=earlier
    )


def _seconds(seconds: int | None) -> int:
    if seconds is None:
        raise errors.missing("VisibilityTimeout")
    check_between("VisibilityTimeout", seconds, 0, 43_200)
    return seconds


def _not_changed(handle: str | None, error: BaseException) -> BaseException | None:
    if isinstance(error, UnknownToken):
        return handles.invalid(handle)
    if isinstance(error, MessageNotFound):
        return errors.invalid(
            "ReceiptHandle",
            handle,
            "Message does not exist or is not available for visibility timeout change.",
        )
    if isinstance(error, LockLost):
        return SqsError(errors.NOT_IN_FLIGHT, "The message referred to isn't in flight.")
    if isinstance(error, InvalidArgument):
        return SqsError(
            errors.INVALID_PARAMETER,
            "Value for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for "
            "the message is beyond the limit [43200 seconds]",
        )
    return error


def delete_batch(call: SqsCall, given: DeleteBatchIn) -> None:
    """Delete up to ten messages, each separately."""
    entity = call.queues.by_url(given.queue_url)
    batch = _Batch(call, entity, check_entries(given.entries, _DELETE))
    batch.settle(
        lambda reply: settling.delete_each(call.bus.broker, entity.name, batch.tokens, reply),
        partial(_not_deleted, call),
    )


def change_visibility_batch(call: SqsCall, given: VisibilityBatchIn) -> None:
    """Hide up to ten messages for longer, or show them, each separately."""
    entity = call.queues.by_url(given.queue_url)
    batch = _Batch(
        call,
        entity,
        check_entries(given.entries, _VISIBILITY),
        lambda entry: _seconds(entry.visibility_timeout),
    )

    milliseconds = [entry.visibility_timeout * 1_000 for entry in batch.entries]
    batch.settle(partial(_change, call, entity, batch.tokens, milliseconds), _not_changed)


class _Batch:
    """Entries with valid handles, and the response for all entries."""

    def __init__(
        self,
        call: SqsCall,
        entity: Entity,
        entries: Sequence[Any],
        check: Callable[[Any], object] | None = None,
    ) -> None:
        self._call = call
        self.entries: list[Any] = []
        self.tokens: list[bytes] = []
        self._out = BatchOut(successful=[], failed=[])
        for entry in entries:
            try:
                if check is not None:
                    check(entry)
                self.tokens.append(handles.decode(entry.receipt_handle, entity))
            except SqsError as error:
                self._out.failed.append(failed(entry.id, error.kind, error.text))
            else:
                self.entries.append(entry)

    def settle(self, command: Callable[[Reply], None], refused: Refused) -> None:
        """Give the bus a command for all tokens, and respond with the outcome of each entry."""
        if not self.tokens:
            self._call.answer(self._out)
            return
        self._call.ask(command, partial(self._told, refused))

    def _told(self, refused: Refused, results: list[Any]) -> BatchOut:
        successful = self._out.successful
        for entry, result in zip(self.entries, results, strict=True):
            error = None if result is None else refused(entry.receipt_handle, result)
            if error is None:
                successful.append(DoneEntry(id=entry.id))
                continue
            if isinstance(error, OnibusError):
                error = errors.of_bus(error)
            assert isinstance(error, SqsError)
            self._out.failed.append(failed(entry.id, error.kind, error.text))
        return self._out


def _action(takes: Any, fast: Any) -> Action:
    return Action(takes=takes, rights=(Right.LISTEN,), entity=naming.by_url, fast=fast)


ACTIONS: dict[str, Action] = {
    "DeleteMessage": _action(HandleIn, delete_message),
    "DeleteMessageBatch": _action(DeleteBatchIn, delete_batch),
    "ChangeMessageVisibility": _action(VisibilityIn, change_visibility),
    "ChangeMessageVisibilityBatch": _action(VisibilityBatchIn, change_visibility_batch),
}
