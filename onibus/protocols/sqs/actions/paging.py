"""Lists of queues, page by page."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode

from onibus.directory.entity import Entity
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.actions.checking import check_between
from onibus.protocols.sqs.queues import queue_name

RESULTS_MAX = 1_000


def paged(
    entities: list[Entity], count: int | None, token: str | None
) -> tuple[list[Entity], str | None]:
    """Return a page of queues, and what asks for the next; without a count up to a thousand."""
    if count is not None:
        check_between("MaxResults", count, 1, RESULTS_MAX)
    if token:
        try:
            after = b64decode(token.encode(), b"-_", validate=True).decode()
        except (ValueError, UnicodeError):
            raise errors.invalid("NextToken", token, "Invalid or expired next token.") from None
        entities = [one for one in entities if queue_name(one) > after]
    page = entities[: count or RESULTS_MAX]
    if count is None or len(page) == len(entities):
        return page, None
    return page, urlsafe_b64encode(queue_name(page[-1]).encode()).decode()
