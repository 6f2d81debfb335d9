"""Every error that a user can meet, in three families.

- `Refused`: the request was rejected and nothing changed. The same request fails again, unless the
  class is `retryable`.
- `Unknown`: the broker lost the outcome on its way to the disk, so the change may or may not be
  stored. With duplicate detection, repeat the send with the same MessageId (D1).
- `Failed`: the broker failed. It acknowledged nothing, and an operator must act.

`FilterFailed` is in none of the three, because it is not the response to a request: a rule cannot
be evaluated on a message. The caller of the rule decides about that message; its sender sees no
error.

`code` is stable: protocols map it to their own errors, and docs/errors.md lists it.
"""

from __future__ import annotations


class OnibusError(Exception):
    """Base class of all Onibus errors."""

    code = "error"
    retryable = False


class Refused(OnibusError):
    """A rejected request: nothing changed."""

    code = "refused"


class Unknown(OnibusError):
    """An unknown outcome: the change may or may not be stored."""

    code = "unknown"
    retryable = True


class Failed(OnibusError):
    """A failure of the broker."""

    code = "failed"


class InvalidArgument(Refused):
    """A value outside its limits."""

    code = "invalid-argument"


class InvalidName(InvalidArgument):
    """An entity name that is empty, too long, or has characters that are not allowed."""

    code = "invalid-name"


class InvalidFilter(InvalidArgument):
    """A filter or action that is malformed, too long, too deep, or uses unknown names."""

    code = "invalid-filter"

    def __init__(self, message: str, position: int | None = None, expected: str = "") -> None:
        wanted = f"; expected {expected}" if expected else ""
        where = "" if position is None else f" at character {position + 1}"
        super().__init__(f"{message}{where}{wanted}")
        #: offset in the string, from 0; None if the error has no position
        self.position = position
        #: what the parser expected there
        self.expected = expected


class InvalidOperation(Refused):
    """A request that contradicts the entity's settings or the message's own fields."""

    code = "invalid-operation"


class Unchangeable(InvalidOperation):
    """A setting that is fixed when the entity is created."""

    code = "unchangeable"


class MessageTooLarge(Refused):
    """A message larger than the entity's limit."""

    code = "message-too-large"


class EntityNotFound(Refused):
    """An entity that does not exist."""

    code = "entity-not-found"

    def __init__(self, message: str, entity: str = "") -> None:
        super().__init__(message)
        #: the entity, if it is not the one that the request names
        self.entity = entity


class EntityExists(Refused):
    """An entity whose name is already in use."""

    code = "entity-exists"


class EntityDisabled(Refused):
    """An entity whose status disables this operation."""

    code = "entity-disabled"


class MessageNotFound(Refused):
    """A message that does not exist in the requested state."""

    code = "message-not-found"


class ClaimNotFound(Refused):
    """A claim that was never made, was released, or whose lease expired."""

    code = "claim-not-found"


class EntityReplaced(Refused):
    """An entity that was deleted and recreated: the request belongs to the earlier one."""

    code = "entity-replaced"


class LogGap(Refused):
    """Requested rows that the log no longer has, from `first` to `last`."""

    code = "log-gap"

    def __init__(self, message: str, first: int, last: int) -> None:
        super().__init__(message)
        #: the first and the last sequence number of the missing rows
        self.first = first
        self.last = last


class ReaderBehind(LogGap):
    """A named reader that fell further behind than its limits allow."""

    code = "reader-behind"


class ReaderTaken(Refused):
    """A named reader that another program took over: the caller's token is out of date."""

    code = "reader-taken"


class LockLost(Refused):
    """A lock token that no longer holds its message."""

    code = "lock-lost"


class UnknownToken(LockLost):
    """A lock token that this entity never issued."""

    code = "unknown-token"


class SessionLockLost(LockLost):
    """A lock token that no longer holds its session."""

    code = "session-lock-lost"


class SessionLocked(Refused):
    """A session that another receiver holds."""

    code = "session-locked"
    retryable = True


class NoSession(Refused):
    """No session available before the wait ended."""

    code = "no-session"
    retryable = True


class QuotaExceeded(Refused):
    """An entity, partition or namespace that is full."""

    code = "quota-exceeded"
    retryable = True


class DiskNearlyFull(QuotaExceeded):
    """A disk at its reserve: sends are rejected, settling still works."""

    code = "disk-nearly-full"


class PartitionOffline(Refused):
    """A partition whose store is unavailable; nothing was stored."""

    code = "partition-offline"
    retryable = True


class NotStaged(Refused):
    """Rows to publish that were never staged, or whose lease expired."""

    code = "not-staged"


class BatchTooOld(Refused):
    """A batch older than the producer's last one: its checkpoint was reset."""

    code = "batch-too-old"


class BatchChanged(Refused):
    """A producer's last batch with different rows: its checkpoint is behind."""

    code = "batch-changed"


class CheckpointMismatch(Refused):
    """Batches or claims that do not continue where the broker has them."""

    code = "checkpoint-mismatch"


class Busy(Refused):
    """An operation that is already in progress: try again shortly."""

    code = "busy"
    retryable = True


class Unauthorized(Refused):
    """A caller that is not authenticated: no key or token, or one that is wrong or expired."""

    code = "unauthorized"


class TooManyFailures(Refused):
    """Too many wrong credentials from one address: these were not checked."""

    code = "too-many-failures"
    retryable = True

    def __init__(
        self, text: str = "too many failed authentications from this address: retry in a second"
    ):
        super().__init__(text)


class Forbidden(Refused):
    """A caller without the right to do this."""

    code = "forbidden"


class KeyNotFound(Refused):
    """A shared access key that does not exist."""

    code = "key-not-found"


class KeyExists(Refused):
    """A shared access key whose name is already in use."""

    code = "key-exists"


class BusClosed(Refused):
    """A closed bus."""

    code = "bus-closed"


class Stopping(BusClosed):
    """A server that is stopping: it delivers no more messages."""

    code = "stopping"
    retryable = True


class AlreadyOpen(Refused):
    """A data directory that another process or Bus has open."""

    code = "already-open"


class NewerFormat(Refused):
    """Data written by a newer version of Onibus."""

    code = "newer-format"


class StoreFailed(Failed):
    """A store operation that failed."""

    code = "store-failed"


class Damaged(Failed):
    """Stored bytes that differ from those written: nothing is served and nothing deleted."""

    code = "damaged"


class ClockInDoubt(Failed):
    """A system clock that cannot be confirmed. It raises an alarm and fails no call."""

    code = "clock-in-doubt"


class FilterFailed(OnibusError):
    """A filter or action that cannot be evaluated: a division by zero, or wrong types."""

    code = "filter-failed"
