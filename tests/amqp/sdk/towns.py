"""Servers that have a disk, which scenarios stop, kill, start and rob of a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.amqp.sdk.stage import Kind
from tests.amqp.sdk.world import World
from tests.over_http.on_disk import Place
from tests.server.processes import Served


class Town:
    """A server with its data on a disk, and worlds of clients of one kind that talk to it."""

    def __init__(self, kind: Kind, root: Path) -> None:
        self._kind = kind
        root.mkdir()
        self.place = Place(root)
        self._worlds: list[World] = []

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        """Run a server, as the other kind does at the same time."""
        running = self.place.serve("--tls")
        server = await asyncio.to_thread(running.__enter__)
        try:
            yield server
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)

    def world(self, server: Served, **how: Any) -> World:
        """Return clients of a server; they are closed when the scenario is over."""
        world = World(self._kind, server, one_port=True, **how)
        self._worlds.append(world)
        return world

    async def close(self) -> None:
        await asyncio.gather(*(world.close() for world in self._worlds))
