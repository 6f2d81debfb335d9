"""Every error a user can meet, and which of three it is.

- `Refused`: the caller's fault or a rule; nothing was changed, sending the same again fails again
  (unless the class says `retryable`).
- `Unknown`: the answer was lost between us and the disk; the change may or may not be there. A send
  with the same MessageId is safe to repeat where duplicates are detected (D1).
- `Failed`: our fault; nothing is acknowledged, somebody has to look.

`FilterFailed` is none of the three, because it answers no request: a rule met a message that it
cannot judge. Whoever runs the rule decides what becomes of that message; its sender hears nothing.

`code` is stable: protocols map it to their own words, and documentation lists it.
"""

from __future__ import annotations


class OnibusError(Exception):
    """The root of all errors raised by Onibus."""

    code = "error"
    retryable = False


class Refused(OnibusError):
    """Nothing was changed: the request cannot be done as asked."""

    code = "refused"


class Unknown(OnibusError):
    """The outcome is unknown: the change may or may not have been stored."""

    code = "unknown"
    retryable = True


class Failed(OnibusError):
    """Something on our side is broken."""

    code = "failed"


class InvalidArgument(Refused):
    """A value is outside what is allowed."""

    code = "invalid-argument"


class InvalidName(InvalidArgument):
    """An entity's name is empty, too long, or has characters that are not allowed."""

    code = "invalid-name"


class InvalidFilter(InvalidArgument):
    """A filter or action cannot be read: malformed, too long, too deep, or of unknown names."""

    code = "invalid-filter"

    def __init__(self, message: str, position: int | None = None, expected: str = "") -> None:
        wanted = f"; expected {expected}" if expected else ""
        where = "" if position is None else f" at character {position + 1}"
        super().__init__(f"{message}{where}{wanted}")
        #: the offset in the text, from 0; None where the fault has no place in it
        self.position = position
        #: what would have been right there
        self.expected = expected


class InvalidOperation(Refused):
    """The request contradicts the entity's settings or the message's own fields."""

    code = "invalid-operation"


class Unchangeable(InvalidOperation):
    """The setting is fixed when the entity is created."""

    code = "unchangeable"


class MessageTooLarge(Refused):
    """The message is larger than the entity takes."""

    code = "message-too-large"


class EntityNotFound(Refused):
    """There is no entity of that name."""

    code = "entity-not-found"

    def __init__(self, message: str, entity: str = "") -> None:
        super().__init__(message)
        #: the entity, where it is not the one that the request names
        self.entity = entity


class EntityExists(Refused):
    """There is an entity of that name already."""

    code = "entity-exists"


class EntityDisabled(Refused):
    """The entity is paused for what was asked."""

    code = "entity-disabled"


class MessageNotFound(Refused):
    """No message with that number is there in the state that was asked for."""

    code = "message-not-found"


class ClaimNotFound(Refused):
    """There is no such claim: it was never made, was given back, or its lease ran out."""

    code = "claim-not-found"


class EntityReplaced(Refused):
    """The entity was deleted and made again: what was asked for belonged to the one before."""

    code = "entity-replaced"


class LogGap(Refused):
    """Rows that were asked for are in the log no more; `first` and `last` name what is lost."""

    code = "log-gap"

    def __init__(self, message: str, first: int, last: int) -> None:
        super().__init__(message)
        #: the numbers of the first and the last of the rows that are lost
        self.first = first
        self.last = last


class ReaderBehind(LogGap):
    """A named reader was behind for longer, or by more, than its owner allows."""

    code = "reader-behind"


class ReaderTaken(Refused):
    """A named reader was taken over: its token is not the caller's."""

    code = "reader-taken"


class LockLost(Refused):
    """The token does not hold its message any more."""

    code = "lock-lost"


class UnknownToken(LockLost):
    """The token was never given out by this entity."""

    code = "unknown-token"


class SessionLockLost(LockLost):
    """The token does not hold its session any more."""

    code = "session-lock-lost"


class SessionLocked(Refused):
    """Somebody else holds that session."""

    code = "session-locked"
    retryable = True


class NoSession(Refused):
    """No session was free before the wait ended."""

    code = "no-session"
    retryable = True


class QuotaExceeded(Refused):
    """The entity, partition or namespace is full."""

    code = "quota-exceeded"
    retryable = True


class DiskNearlyFull(QuotaExceeded):
    """The disk has come to its watermark: sends are refused while settling still works."""

    code = "disk-nearly-full"


class PartitionOffline(Refused):
    """The partition's store is down; nothing was stored."""

    code = "partition-offline"
    retryable = True


class NotStaged(Refused):
    """What is to be published was never staged, or its lease has run out."""

    code = "not-staged"


class BatchTooOld(Refused):
    """A producer publishes a batch that lies before its last one: its checkpoint was reset."""

    code = "batch-too-old"


class BatchChanged(Refused):
    """A producer publishes its last batch again with other rows: its checkpoint is behind."""

    code = "batch-changed"


class CheckpointMismatch(Refused):
    """A producer's batches, or a reader's claims, do not continue where the bus has them."""

    code = "checkpoint-mismatch"


class Busy(Refused):
    """The same thing is being done already; ask again in a moment."""

    code = "busy"
    retryable = True


class Unauthorized(Refused):
    """Who asks is not known: no key, no token, or one that is not good (any more)."""

    code = "unauthorized"


class TooManyFailures(Refused):
    """Too many credentials from one address were wrong; this one was not checked."""

    code = "too-many-failures"
    retryable = True

    def __init__(
        self, text: str = "too many failed authentications from this address: retry in a second"
    ):
        super().__init__(text)


class Forbidden(Refused):
    """Who asks may not do this."""

    code = "forbidden"


class KeyNotFound(Refused):
    """There is no shared access key of that name."""

    code = "key-not-found"


class KeyExists(Refused):
    """There is a shared access key of that name already."""

    code = "key-exists"


class BusClosed(Refused):
    """The bus was closed."""

    code = "bus-closed"


class Stopping(BusClosed):
    """The server is stopping: it gives no more messages out."""

    code = "stopping"
    retryable = True


class AlreadyOpen(Refused):
    """Another process or another Bus has this directory open."""

    code = "already-open"


class NewerFormat(Refused):
    """The data were written by a newer version than this one."""

    code = "newer-format"


class StoreFailed(Failed):
    """A store could not do what it was asked."""

    code = "store-failed"


class Damaged(Failed):
    """Stored bytes are not what was written: nothing is served, and nothing is deleted."""

    code = "damaged"


class ClockInDoubt(Failed):
    """The machine's clock says what cannot be proven. An alarm names it; no call fails by it."""

    code = "clock-in-doubt"


class FilterFailed(OnibusError):
    """A filter or action cannot be evaluated on a message: a division by zero, or wrong types."""

    code = "filter-failed"
