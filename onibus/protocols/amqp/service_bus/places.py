"""Addresses: which node of which entity they name.

    orders                              a queue or topic
    events/Subscriptions/audit          a subscription
    …/$DeadLetterQueue                  its dead-letter queue
    …/$Transfer/$DeadLetterQueue        messages that could not be forwarded
    …/$management                       requests about it
    $cbs                                tokens

Some clients write amqps://host/ or sb://host/ before, whatever they speak. Case does not matter.
"""

from __future__ import annotations

from typing import NamedTuple

from onibus.core.errors import EntityNotFound

CBS = "$cbs"
_MANAGEMENT = "/$management"
_TRANSFER = "/$transfer"
_DEAD_LETTERS = "/$deadletterqueue"
#: No valid address is longer: a topic, a subscription, and a suffix.
_LENGTH_MAX = 1_024


class Place(NamedTuple):
    """What an address names."""

    #: the whole address, in lower case: rights are checked for it
    path: str
    #: the queue, topic or subscription
    entity: str
    dead: bool = False
    #: the sub-queue of messages that could not be forwarded: always empty here
    transfer: bool = False
    management: bool = False


def path_of(address: str) -> str:
    """Return the path in an address, in lower case."""
    if len(address) > _LENGTH_MAX:
        raise EntityNotFound(f"the address is too long: at most {_LENGTH_MAX} characters")
    _, mark, rest = address.partition("://")
    path = rest.partition("/")[2] if mark else address
    return path.strip("/").lower()


def place_of(address: str) -> Place:
    """Return what an address names."""
    path = entity = path_of(address)
    management = entity.endswith(_MANAGEMENT)
    if management:
        entity = entity.removesuffix(_MANAGEMENT)
    dead = entity.endswith(_DEAD_LETTERS)
    if dead:
        entity = entity.removesuffix(_DEAD_LETTERS)
    transfer = dead and entity.endswith(_TRANSFER)
    if transfer:
        entity = entity.removesuffix(_TRANSFER)
    if not entity:
        raise EntityNotFound(f"address {address!r} names no entity")
    return Place(path, entity, dead, transfer, management)
