"""Servers that have a disk, which scenarios stop, kill, start and rob of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any

from tests.amqp.sdk.world import Kind, Stage, World
from tests.over_http.on_disk import Place
from tests.server.processes import Served


class Town:
    """A server with its data on a disk, and worlds of clients of one kind that talk to it."""

    def __init__(self, kind: Kind, place: Place, stage: Stage) -> None:
        self.place = place
        self._kind = kind
        self._stage = stage

    def serve(self) -> AbstractContextManager[Served]:
        return self.place.serve("--tls")

    def world(self, server: Served, **how: Any) -> World:
        """Return clients of a server; they are closed when the scenario is over, in peace."""
        world = World(self._kind, server, self._stage, one_port=True, **how)
        self._worlds.append(world)
        return world

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        self._worlds: list[World] = []
        try:
            self._stage.run(scenario)
        finally:
            self._stage.run(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(world.close() for world in self._worlds))
