"""Error descriptions in the words of Service Bus, which some client code matches.

The service ends every description with a tracking id, which its support asks for. Here it
distinguishes errors of one kind in the logs of clients.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from onibus.core import errors

#: Service Bus error messages, by kind of error. Other errors keep their own.
_WORDS: tuple[tuple[type[errors.OnibusError], str], ...] = (
    (errors.EntityNotFound, "The messaging entity '{0}' could not be found."),
    (errors.EntityExists, "The messaging entity '{0}' already exists."),
    (errors.EntityDisabled, "Messaging entity '{0}' is currently disabled."),
    (
        errors.UnknownToken,
        "The lock supplied is invalid. Either the lock expired, or the message has already been "
        "removed from the queue.",
    ),
)


def description(error: BaseException, host: str, path: str) -> str:
    """Return the description of an error about a path on a host."""
    path = getattr(error, "entity", "") or path
    address = f"sb://{host}/{path}"
    for kind, words in _WORDS:
        if isinstance(error, kind):
            return tracked(words.format(address), host, path)
    return tracked(str(error), host, path)


def tracked(text: str, host: str, path: str) -> str:
    """Return a description with its tracking id."""
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    tracker = f"{host}:{path}" if path else host
    return f"{text} TrackingId:{uuid4()}_G0, SystemTracker:{tracker}, Timestamp:{moment}"
