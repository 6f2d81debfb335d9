"""Settle: a receiver says what is to become of what it holds. Completing is path/complete.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.core.block import NEVER
from onibus.core.checks import check_properties, check_text, check_whole
from onibus.core.errors import InvalidArgument, InvalidOperation
from onibus.core.lifecycle import DEAD, Input, State
from onibus.core.limits import REASON_LENGTH_MAX, VISIBILITY_MS_MAX
from onibus.core.mark import Mark
from onibus.core.marks import FIRST_RECEIVED
from onibus.core.message import decode_overlay, encode_overlay
from onibus.core.path.attempts import spoil_attempt
from onibus.core.path.dead_letter import dead_letter, expire_message, too_many_deliveries
from onibus.core.records import WriteBatch
from onibus.core.returns import Return

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription


def abandon(
    subscription: Subscription,
    token: bytes,
    now: int,
    out: WriteBatch,
    delay_ms: int = 0,
    properties: dict[str, Any] | None = None,
) -> None:
    """A message is given back, at once or after a delay (X4)."""
    ordinal, _, _ = subscription.held_by(token)
    check_whole("delay_ms", delay_ms, 0)
    modify(subscription, ordinal, properties)
    give_back(subscription, ordinal, Input.ABANDON, now, out, delay_ms)


def defer(
    subscription: Subscription,
    token: bytes,
    now: int,
    out: WriteBatch,
    delay_ms: int = 0,
    properties: dict[str, Any] | None = None,
) -> None:
    """A message is set aside; with a delay it comes back by itself (L1, L5)."""
    ordinal, _, _ = subscription.held_by(token)
    check_whole("delay_ms", delay_ms, 0)
    modify(subscription, ordinal, properties)
    give_back(subscription, ordinal, Input.DEFER, now, out, delay_ms)


def reject(
    subscription: Subscription,
    token: bytes,
    out: WriteBatch,
    reason: str | None = None,
    description: str | None = None,
    properties: dict[str, Any] | None = None,
    now: int | None = None,
) -> None:
    """A receiver dead-letters a message."""
    ordinal, mark, _ = subscription.held_by(token)
    for name, text in (("reason", reason), ("description", description)):
        if text is not None:
            check_text(name, text, REASON_LENGTH_MAX)
    if mark.state in DEAD:
        raise InvalidOperation("a dead-lettered message cannot be dead-lettered again")
    modify(subscription, ordinal, properties)
    if now is not None:
        note_return(subscription, ordinal, mark, "dead-lettered", now)
    dead_letter(subscription, ordinal, reason, description, out)


def renew(
    subscription: Subscription, token: bytes, now: int, out: WriteBatch, duration: int | None = None
) -> int:
    """Hold a message longer, or for `duration` from now; return until when, by the wall clock."""
    ordinal, _, hold = subscription.held_by(token)
    if hold.carried:
        raise InvalidOperation("the session's lock holds this message: renew the session")
    if duration is not None:
        if not 0 <= duration <= VISIBILITY_MS_MAX:
            raise InvalidArgument(f"the visibility timeout must be 0 to {VISIBILITY_MS_MAX} ms")
        if now + duration > hold.received + VISIBILITY_MS_MAX:
            raise InvalidArgument(
                f"a message stays in flight for at most {VISIBILITY_MS_MAX} ms after its receive"
            )
    # The receive that gave this message out cannot be repeated any more (F9).
    spoil_attempt(subscription, hold, out)
    until = now + (hold.duration if duration is None else duration)
    subscription.renew(hold, ordinal, until)
    return subscription.partition.offsets.shown(until)


def give_back(
    subscription: Subscription,
    ordinal: int,
    event: Input,
    now: int,
    out: WriteBatch,
    delay_ms: int = 0,
) -> None:
    """End a lock without completing: by abandon, defer or release, or because it ran out.

    Counts the delivery unless it is a release or from the dead-letter queue; the last one allowed
    dead-letters (B1). What expired while it was held expires now (B2).
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
    """Remember when a message was received for the first time."""
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
    """Settling may change properties; they lie over those of the message."""
    if properties is None:
        return
    check_properties(properties)
    if not properties:
        return
    mark = subscription.marks[ordinal]
    overlay = {} if mark.overlay is None else decode_overlay(mark.overlay)
    whole = subscription.view(ordinal).properties | properties
    try:
        mark.overlay = encode_overlay(overlay | {"properties": whole})
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"cannot encode the properties: {error}") from None
