"""What tests of topics share."""

from __future__ import annotations

from typing import Any

from onibus import Bus, ReceivedMessage, Rule, SqlAction, SqlFilter
from onibus.core.invariants import violations
from onibus.core.message import encode
from tests.bus_helpers import Disks, ManualClock, bodies, crash, peek_everything, settle


async def topic_with(bus: Bus, *names: str, topic: str = "t", **settings: Any) -> list[str]:
    """Make a topic with subscriptions of these names; return their whole names."""
    await bus.create_topic(topic, **settings)
    return [await bus.create_subscription(topic, name) for name in names]


def sql(name: str, condition: str, action: str | None = None, **parameters: Any) -> Rule:
    """Return a rule in SQL; parameters are those of its filter."""
    given = {f"@{key}": value for key, value in parameters.items()}
    act = None if action is None else SqlAction(action)
    return Rule(name, SqlFilter(condition, given), act)


def sound(bus: Bus) -> None:
    """What must hold of every partition holds."""
    for entity in bus.broker.namespace.entities.values():
        for partition in entity.partitions:
            assert violations(partition.online()) == [], (entity.name, partition.index)


def there(bus: Bus, subscription: str) -> list[str]:
    """Return the texts of what a subscription has, dead letters aside."""
    return bodies(peek_everything(bus, subscription))


def states(bus: Bus, name: str) -> list[tuple[str, str]]:
    """Return the texts and states of what an entity has, dead letters aside."""
    return [(m.body.decode(), m.state) for m in peek_everything(bus, name)]


def dead(bus: Bus, subscription: str) -> list[tuple[str, str | None]]:
    """Return the texts and reasons of a subscription's dead letters."""
    found = peek_everything(bus, subscription, dead_letters=True)
    return [(one.body.decode(), one.dead_letter_reason) for one in found]


def _seen(message: ReceivedMessage) -> Any:
    return (
        message.sequence_number,
        message.enqueued_time_ms,
        message.state,
        message.delivery_count,
        message.expires_at_ms,
        encode(message.message),
        message.dead_letter_reason,
        message.dead_letter_description,
    )


def whole_picture(bus: Bus) -> Any:
    """Return all that can be seen of topics and subscriptions, sizes aside."""
    found: dict[str, Any] = {}
    for entity in bus.broker.namespace.entities.values():
        peeked = [
            _seen(message)
            for dead_letters in (False, True)
            for message in peek_everything(bus, entity.name, dead_letters=dead_letters)
        ]
        found[entity.name] = (entity.settings, entity.rules, entity.created, peeked)
    return found


async def reopen(bus: Bus, disks: Disks, clock: ManualClock, *stores: str) -> Bus:
    """Stop cleanly and open again: nothing may look different."""
    sound(bus)
    before = whole_picture(bus)
    await bus.close()
    again = await disks.bus(clock, *stores)
    sound(again)
    assert whole_picture(again) == before
    return again


async def reopen_after_crash(bus: Bus, disks: Disks, clock: ManualClock, *stores: str) -> Bus:
    """Crash when all is on the disk, and open again."""
    await settle(bus)
    before = whole_picture(bus)
    crash(bus)
    again = await disks.bus(clock, *stores)
    sound(again)
    assert whole_picture(again) == before
    return again
