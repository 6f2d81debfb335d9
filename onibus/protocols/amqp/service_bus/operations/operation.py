"""An operation of $management: the right that it needs, and its function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from onibus.core.errors import InvalidArgument
from onibus.core.limits import BATCH_COUNT_MAX, NUMBERS_MAX
from onibus.protocols.amqp.service_bus.incoming import string_of
from onibus.protocols.amqp.service_bus.requests import Request
from onibus.security.rights import Right

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.management import ManagementNode


class Operation(NamedTuple):
    """What a request of one name does."""

    right: Right
    run: Callable[[ManagementNode, Request], None]
    #: it can be part of a transaction
    transacts: bool = False


def numbers_of(request: Request, name: str = "sequence-numbers") -> list[int]:
    """Return the sequence numbers that a request names."""
    found = request.argument(name, list)
    if not 0 < len(found) <= NUMBERS_MAX or not all(type(one) is int for one in found):
        raise InvalidArgument(f"{name} must be an array of 1 to {NUMBERS_MAX} numbers")
    return list(found)


def tokens_of(request: Request) -> list[bytes]:
    """Return the tokens that a request names, as UUIDs."""
    found = request.argument("lock-tokens", list)
    if not 0 < len(found) <= BATCH_COUNT_MAX or not all(type(one) is UUID for one in found):
        raise InvalidArgument(f"lock-tokens must be an array of 1 to {BATCH_COUNT_MAX} UUIDs")
    return [one.bytes for one in found]


def session_of(request: Request) -> str | None:
    """Return the session that a request is about, if it names one."""
    found = request.body.get("session-id") if isinstance(request.body, dict) else None
    return None if found is None else string_of("session-id", found)
