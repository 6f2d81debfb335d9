"""Requests and results of a search, and of counting dead-lettered messages by reason."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from onibus.api.messages import BodyLimit, Count, FilterIn, MessageOut, Start

#: Messages that one search looks at, at most.
LOOKS_MAX = 20_000


class Search(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to begin, which messages to find, and how many to look at."""

    #: the sequence number at which to begin: `next` of the search before
    start: Start = 0
    limit: Count = 50
    looks: Annotated[int, Meta(ge=1, le=LOOKS_MAX)] = 5_000
    dead_letters: bool = False
    where: FilterIn | None = None
    #: default: whole bodies
    body_limit: BodyLimit | None = None


class SearchOut(msgspec.Struct):
    """Messages found, and where the next search starts."""

    messages: list[MessageOut]
    #: null at the end
    next: int | None
    #: messages looked at, about
    looked: int


class TailIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which arriving messages to show; an empty filter shows all."""

    where: FilterIn
    body_limit: BodyLimit | None = None


class Reason(msgspec.Struct):
    """A reason, and how many messages were dead-lettered for it."""

    reason: str
    count: int


class ReasonsOut(msgspec.Struct):
    """Dead-lettered messages by reason, the most frequent first."""

    reasons: list[Reason]
    #: messages with further reasons, which are not listed
    others: int
    #: whether every dead-lettered message was counted
    complete: bool
