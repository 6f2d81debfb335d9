"""Settle: a receiver completes, abandons, defers, dead-letters or releases its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onibus.core.block import NEVER
from onibus.core.commands import Settle, Settlement
from onibus.core.errors import InvalidArgument, InvalidOperation, Refused
from onibus.core.lifecycle import DEAD, Input, State
from onibus.core.mark import Mark
from onibus.core.marks import FIRST_RECEIVED
from onibus.core.message import decode_overlay, encode_overlay
from onibus.core.path.complete import complete
from onibus.core.path.dead_letter import dead_letter, expire_message, too_many_deliveries
from onibus.core.path.held import held_session
from onibus.core.records import WriteBatch
from onibus.core.returns import Return

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def settle(
    partition: Partition, command: Settle, now: int, wall: int, out: WriteBatch
) -> list[Refused | None]:
    """Settle messages by their tokens; return None, or the rejection, for each."""
    found = find_settled(partition, command)
    subscription = partition.subscriptions[command.subscription]
    settlement = command.settlement
    # A token that is listed twice settles its message once.
    ordinals = list(dict.fromkeys([one for one in found if type(one) is int]))
    if settlement.verb == "complete":
        complete(subscription, ordinals, out)
    else:
        act = _VERBS[settlement.verb]
        for ordinal in ordinals:
            modify(subscription, ordinal, settlement.properties)
            act(subscription, ordinal, settlement, now, out)
    return [None if isinstance(one, int) else one for one in found]


def find_settled(partition: Partition, command: Settle) -> list[int | Refused]:
    """Return the ordinal that each token holds, or the rejection of the token."""
    subscription = partition.subscriptions[command.subscription]
    if command.session is not None:
        held_session(subscription, command.session)
    dead_letters = command.settlement.verb == "dead-letter"
    found: list[int | Refused] = []
    for token in command.tokens:
        ordinal = subscription.held_ordinal(token)
        if ordinal and not dead_letters:
            found.append(ordinal)
            continue
        try:
            ordinal, mark, _ = subscription.held_by(token)
            if dead_letters and mark.state in DEAD:
                raise InvalidOperation("a dead-lettered message cannot be dead-lettered again")
        except Refused as refusal:
            if command.atomic:
                raise
            found.append(refusal)
        else:
            found.append(ordinal)
    if command.atomic and len(set(found)) < len(found):
        raise InvalidArgument("a lock token is listed twice: list each once")
    return found


_Act = Callable[["Subscription", int, Settlement, int, WriteBatch], None]


def _abandon(
    subscription: Subscription, ordinal: int, settlement: Settlement, now: int, out: WriteBatch
) -> None:
    give_back(subscription, ordinal, Input.ABANDON, now, out, settlement.delay_ms)


def _defer(
    subscription: Subscription, ordinal: int, settlement: Settlement, now: int, out: WriteBatch
) -> None:
    give_back(subscription, ordinal, Input.DEFER, now, out, settlement.delay_ms)


def _dead_letter(
    subscription: Subscription, ordinal: int, settlement: Settlement, now: int, out: WriteBatch
) -> None:
    note_return(subscription, ordinal, subscription.marks[ordinal], "dead-lettered", now)
    dead_letter(subscription, ordinal, settlement.reason, settlement.description, out)


def _release(
    subscription: Subscription, ordinal: int, settlement: Settlement, now: int, out: WriteBatch
) -> None:
    give_back(subscription, ordinal, Input.RELEASE, now, out)


_VERBS: dict[str, _Act] = {
    "abandon": _abandon,
    "defer": _defer,
    "dead-letter": _dead_letter,
    "release": _release,
}


def give_back(
    subscription: Subscription,
    ordinal: int,
    event: Input,
    now: int,
    out: WriteBatch,
    delay_ms: int = 0,
) -> None:
    """End a lock without completing: by abandon, defer, release or expiry of the lock.

    This counts the delivery, except for a release and in the dead-letter queue; the last one
    allowed dead-letters the message (B1). A message that expired while it was held expires now
    (B2).
    """
    mark = subscription.marks[ordinal]
    note_return(subscription, ordinal, mark, _HOW[event], now)
    in_main_queue = mark.state not in DEAD
    if in_main_queue and event is not Input.RELEASE:
        if not mark.deliveries:
            _note_first(mark)
        mark.deliveries += 1
        if mark.deliveries >= subscription.settings.max_delivery_count:
            too_many_deliveries(subscription, ordinal, out)
            return
    if in_main_queue and subscription.expires(ordinal) <= now:
        subscription.change(ordinal, Input.RELEASE, out)
        expire_message(subscription, ordinal, out)
        return
    if event is Input.ABANDON and mark.state in (State.LOCKED, State.DEAD_LETTERED_LOCKED):
        delay_ms = max(delay_ms, _backoff(subscription, mark.deliveries))
        if delay_ms:
            event = Input.DELAY
    subscription.change(ordinal, event, out, due=now + delay_ms if delay_ms else 0)


_HOW = {Input.ABANDON: "abandoned", Input.DEFER: "deferred", Input.RELEASE: "released"}


def note_return(subscription: Subscription, ordinal: int, mark: Mark, how: str, now: int) -> None:
    """Record how a delivery ended, for people who ask about the message."""
    hold, returns = mark.hold, subscription.partition.returns
    if returns is None or hold is None or hold.owner:
        return
    received = None if hold.until == NEVER else hold.received
    if received is not None and hold.ordinals[ordinal] <= now:
        how = "lock expired"
    returns.note(subscription.key, ordinal, Return(received, now, how))


def _note_first(mark: Mark) -> None:
    """Record when a message was received for the first time."""
    hold = mark.hold
    if hold is not None and hold.until != NEVER:
        overlay = {} if mark.overlay is None else decode_overlay(mark.overlay)
        mark.overlay = encode_overlay(overlay | {FIRST_RECEIVED: hold.received})


def _backoff(subscription: Subscription, deliveries: int) -> int:
    """Return how long the entity makes a message wait after that many deliveries (X4)."""
    base = subscription.settings.retry_backoff_ms
    if not base:
        return 0
    return min(base << min(max(deliveries - 1, 0), 40), subscription.settings.retry_backoff_ms_max)


def modify(subscription: Subscription, ordinal: int, properties: dict[str, Any] | None) -> None:
    """Lay properties that settling changes over those of the message."""
    if not properties:
        return
    mark = subscription.marks[ordinal]
    overlay = {} if mark.overlay is None else decode_overlay(mark.overlay)
    whole = subscription.view(ordinal).properties | properties
    mark.overlay = encode_overlay(overlay | {"properties": whole})
