"""Server errors, raised by the client as the same classes.

A problem document names the error's stable code. A code unknown to this version becomes the family
that the document names: refused, unknown or failed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from onibus.api.wire import Problem
from onibus.client.asking import ServerResponse
from onibus.core import errors
from onibus.core.errors import OnibusError

_FAMILIES = {"refused": errors.Refused, "unknown": errors.Unknown, "failed": errors.Failed}


class Unreachable(errors.Refused):
    """No response from a server at that address: nothing changed."""

    code = "unreachable"
    retryable = True


_KINDS: dict[str, type[OnibusError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OnibusError)
}


def problem_of(answer: ServerResponse) -> OnibusError | None:
    """Return the error of a response, or None if it succeeded."""
    if answer.status < 400:
        return None
    try:
        told = msgspec.json.decode(answer.body, type=Problem)
    except msgspec.DecodeError:
        text = f"unexpected response {answer.status}: check that the address is an Onibus server"
        return errors.Failed(text) if answer.status >= 500 else errors.Refused(text)
    return error_of(told)


def error_of(told: Problem) -> OnibusError:
    """Return the error of a problem document."""
    kind = _KINDS.get(told.type) or _FAMILIES.get(told.outcome, errors.Failed)
    error: Any
    if issubclass(kind, errors.LogGap):
        error = kind(told.detail, told.first or 0, told.last or 0)
    else:
        error = kind(told.detail)
    if isinstance(error, errors.InvalidFilter):
        # The message contains them already.
        error.position, error.expected = told.position, told.expected or ""
    error.code = told.type
    error.retryable = told.retryable
    result: OnibusError = error
    return result
