"""Every error that SQS clients get, in one table: type, query code, status.

An AWS JSON client knows an error by its type, a Query client by its code. Known messages are those
of AWS. `of_bus` translates the errors of the bus.
"""

from __future__ import annotations

from dataclasses import dataclass

from onibus.core.errors import (
    BusClosed,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    Forbidden,
    InvalidArgument,
    InvalidName,
    InvalidOperation,
    MessageTooLarge,
    OnibusError,
    PartitionOffline,
    QuotaExceeded,
    TooManyFailures,
    Unauthorized,
    Unchangeable,
)

_SERVICE = "AWS.SimpleQueueService."


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of error."""

    #: the value of `__type`
    shape: str
    #: the code of the Query protocol
    code: str
    status: int = 400

    @property
    def sender_fault(self) -> bool:
        return self.status < 500


def _service(shape: str, status: int = 400) -> Kind:
    return Kind(shape, _SERVICE + shape, status)


QUEUE_DOES_NOT_EXIST = Kind("QueueDoesNotExist", _SERVICE + "NonExistentQueue")
QUEUE_NAME_EXISTS = Kind("QueueNameExists", "QueueAlreadyExists")
PURGE_IN_PROGRESS = _service("PurgeQueueInProgress", 403)
TOO_MANY_ENTRIES = _service("TooManyEntriesInBatchRequest")
EMPTY_BATCH = _service("EmptyBatchRequest")
IDS_NOT_DISTINCT = _service("BatchEntryIdsNotDistinct")
INVALID_BATCH_ID = _service("InvalidBatchEntryId")
BATCH_TOO_LONG = _service("BatchRequestTooLong")
NOT_IN_FLIGHT = _service("MessageNotInflight")
UNSUPPORTED = _service("UnsupportedOperation")
OVER_LIMIT = Kind("OverLimit", "OverLimit", 403)
HANDLE_INVALID = Kind("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid")
NOT_FOUND = Kind("ResourceNotFoundException", "ResourceNotFoundException", 404)
INVALID_ATTRIBUTE_NAME = Kind("InvalidAttributeName", "InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE = Kind("InvalidAttributeValue", "InvalidAttributeValue")
INVALID_CONTENTS = Kind("InvalidMessageContents", "InvalidMessageContents")
MISSING_PARAMETER = Kind("MissingRequiredParameterException", "MissingParameter")
INVALID_PARAMETER = Kind("InvalidParameterValueException", "InvalidParameterValue")
INVALID_ACTION = Kind("InvalidAction", "InvalidAction")
UNKNOWN_OPERATION = Kind("UnknownOperationException", "InvalidAction")
MALFORMED = Kind("SerializationException", "MalformedInput")

INCOMPLETE_SIGNATURE = Kind("IncompleteSignature", "IncompleteSignature")
MISSING_TOKEN = Kind("MissingAuthenticationToken", "MissingAuthenticationToken", 403)
INVALID_KEY = Kind("InvalidClientTokenId", "InvalidClientTokenId", 403)
SIGNATURE_DIFFERS = Kind("SignatureDoesNotMatch", "SignatureDoesNotMatch", 403)
EXPIRED = Kind("RequestExpired", "RequestExpired")
THROTTLED = Kind("RequestThrottled", "RequestThrottled", 403)
ACCESS_DENIED = Kind("AccessDeniedException", "AccessDenied", 403)

UNAVAILABLE = Kind("ServiceUnavailable", "ServiceUnavailable", 503)
INTERNAL = Kind("InternalFailure", "InternalFailure", 500)


#: Errors for wrong credentials, which count against the client's address.
WRONG_CREDENTIALS = (INVALID_KEY, SIGNATURE_DIFFERS)


class SqsError(Exception):
    """An error of SQS."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def missing(name: str) -> SqsError:
    """Return the error for a missing parameter."""
    return SqsError(MISSING_PARAMETER, f"The request must contain the parameter {name}.")


def invalid(name: str, value: object, reason: str) -> SqsError:
    """Return the error for an invalid value of a parameter."""
    text = f"Value {value} for parameter {name} is invalid. Reason: {reason}"
    return SqsError(INVALID_PARAMETER, text)


def no_queue() -> SqsError:
    """There is no such queue."""
    return SqsError(QUEUE_DOES_NOT_EXIST, "The specified queue does not exist.")


#: Errors of the bus and their SQS errors; the first that fits counts.
_OF_BUS: tuple[tuple[type[OnibusError], Kind], ...] = (
    (EntityNotFound, QUEUE_DOES_NOT_EXIST),
    (EntityExists, QUEUE_NAME_EXISTS),
    (EntityDisabled, UNSUPPORTED),
    (Forbidden, ACCESS_DENIED),
    (Unauthorized, INVALID_KEY),
    (TooManyFailures, THROTTLED),
    (InvalidName, INVALID_PARAMETER),
    (MessageTooLarge, INVALID_PARAMETER),
    (Unchangeable, INVALID_ATTRIBUTE_VALUE),
    (InvalidArgument, INVALID_PARAMETER),
    (InvalidOperation, UNSUPPORTED),
    (QuotaExceeded, OVER_LIMIT),
    (PartitionOffline, UNAVAILABLE),
    (BusClosed, UNAVAILABLE),
)


def of_bus(error: OnibusError) -> SqsError:
    """Return what the bus says, in the words of SQS."""
    if isinstance(error, EntityNotFound):
        return no_queue()
    for known, kind in _OF_BUS:
        if isinstance(error, known):
            return SqsError(kind, str(error))
    # An unknown outcome, or an internal error: a client may try again.
    return SqsError(UNAVAILABLE if error.retryable else INTERNAL, str(error))
