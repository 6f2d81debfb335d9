"""Atomic changes to the settings of a queue, safe against concurrent ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from onibus.bus import Bus
from onibus.core.errors import EntityExists, EntityNotFound
from onibus.core.settings import QueueSettings
from onibus.directory.entity import Entity
from onibus.protocols.sqs.queues import settings_of

#: A change takes as long as a store commit, so a concurrent one soon ends.
TRIES = 200
PAUSE_SECONDS = 0.01


async def in_turn(do: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Change or delete a queue, after any concurrent change of it."""
    for left in range(TRIES, -1, -1):
        try:
            await do()
        except EntityExists:
            if not left:
                raise
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return


async def change(bus: Bus, entity: Entity, make: Callable[[QueueSettings], dict[str, Any]]) -> None:
    """Change a queue's settings by what `make` makes of those it has just then."""

    namespace = bus.broker.namespace

    def changed(found: Entity) -> dict[str, Any]:
        if found is not entity:
            # A queue recreated under that name has different settings.
            raise EntityNotFound(f"queue {entity.name} was deleted")
        settings = settings_of(found)
        wanted = make(settings)
        target = settings.forward_dead_letters_to
        if target is not None and target.lower() not in namespace.entities:
            # Its dead-letter queue was deleted: letters wait in the queue itself.
            wanted = {"forward_dead_letters_to": None, **wanted}
        return wanted

    await in_turn(lambda: bus.ask(lambda reply: namespace.change(entity.name, changed, reply)))


async def change_texts(
    bus: Bus, entity: Entity, make: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    """Change the attributes that a queue keeps as strings, in the same way."""
    await change(bus, entity, lambda settings: {"attributes": make(dict(settings.attributes))})
