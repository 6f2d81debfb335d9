"""A server with a disk, which scenarios end and start again, and whose stores they take away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.amqp.javascript.playing import Others, Player
from tests.client.server_helpers import development_string
from tests.over_http.on_disk import Place, kill
from tests.server.processes import Served


class Stage:
    """A place with a server that runs, or does not."""

    def __init__(self, root: Path, player: Player, tls: tuple[Path, Path]) -> None:
        self.place = Place(root)
        # Whoever asks for any port may be given one that a server has just left.
        self.place.port = 0
        self._player = player
        self._flags = ("--tls", "--tls-certificate", str(tls[0]), "--tls-key", str(tls[1]))
        self._servers = ExitStack()
        self.server: Served

    def start(self) -> str:
        """Start a server; return how it is reached."""
        self.server = self._servers.enter_context(self.place.serve(*self._flags))
        return self.connection

    @property
    def connection(self) -> str:
        return development_string(self.server.port)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Have a server run; whichever runs in the end is killed."""
        with self._servers:
            self.start()
            yield

    def play(
        self, scenario: str, end: Callable[[Served], None] = kill, **others: Callable[..., Any]
    ) -> None:
        """Run a scenario, which may end the server and start it again."""
        known: Others = {"end": lambda: end(self.server), "start": self.start}
        self._player.play(scenario, self.connection, {**known, **others})


class Disk:
    """The directory of a store, which can be taken away as if its disk were pulled out."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._elsewhere = place.with_name(place.name + "-elsewhere")

    def take_away(self) -> None:
        os.rename(self._place, self._elsewhere)

    def give_back(self) -> None:
        os.rename(self._elsewhere, self._place)
