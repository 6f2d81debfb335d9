"""Checks of parameters that several actions share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import Kind, SqsError
from onibus.protocols.sqs.shapes import FailedEntry

BATCH_ENTRIES_MAX = 10

ID_LENGTH_MAX = 128

_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ENTRY_IDS = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\n[A-Za-z0-9_-]{1,80})*")


def is_id(value: str) -> bool:
    """Return whether a string of visible characters can be a group, deduplication or attempt id."""
    return (
        0 < len(value) <= ID_LENGTH_MAX
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )


def check_id(name: str, value: str) -> None:
    """Reject a string that cannot be a group, deduplication or attempt id."""
    if not is_id(value):
        raise errors.invalid(
            name,
            value,
            f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )


def check_between(name: str, value: int, low: int, high: int, reason: str = "") -> None:
    """Reject a number that is too small or too large."""
    if not low <= value <= high:
        reason = reason or f"Must be >= {low} and <= {high}, if provided."
        raise errors.invalid(name, value, reason)


def check_entries(entries: Sequence[Any] | None, kind: str) -> Sequence[Any]:
    """Return the entries of a batch, or reject all of it."""
    if not entries:
        text = f"There should be at least one {kind} in the request."
        raise SqsError(errors.EMPTY_BATCH, text)
    if len(entries) > BATCH_ENTRIES_MAX:
        raise SqsError(
            errors.TOO_MANY_ENTRIES,
            f"Maximum number of entries per request are {BATCH_ENTRIES_MAX}. "
            f"You have sent {len(entries)}.",
        )
    ids = [entry.id or "" for entry in entries]
    text = "\n".join(ids)
    one_line_each = text.count("\n") == len(ids) - 1 and _ENTRY_IDS.fullmatch(text)
    if not one_line_each or len(set(ids)) != len(ids):
        _refuse_ids(entries, kind)
    return entries


def _refuse_ids(entries: Sequence[Any], kind: str) -> None:
    """Reject missing, malformed and repeated ids of entries."""
    seen = set()
    for entry in entries:
        if entry.id is None:
            raise errors.missing(f"{kind}.1.Id")
        if not _ENTRY_ID.fullmatch(entry.id):
            raise SqsError(
                errors.INVALID_BATCH_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and "
                "underscores. It can be at most 80 letters long.",
            )
        if entry.id in seen:
            raise SqsError(errors.IDS_NOT_DISTINCT, f"Id {entry.id} repeated.")
        seen.add(entry.id)


def failed(entry_id: str | None, kind: Kind, text: str) -> FailedEntry:
    """Return the response entry of a rejected batch entry."""
    return FailedEntry(id=entry_id, sender_fault=kind.sender_fault, code=kind.code, message=text)
