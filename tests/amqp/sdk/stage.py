"""Where scenarios are played: each by both official clients of Python, at once.

These clients sleep most of the time: opening a link takes half a second, closing it up to another.
So the plain client and the asyncio one play a scenario side by side, each with a server of its own
(its clock moves by itself), and their links are closed while the next scenario runs.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol, Self

Kind = Literal["sync", "async"]
KINDS: tuple[Kind, ...] = ("sync", "async")
#: A scenario that hangs fails instead.
PATIENCE_S = 180


class Player(Protocol):
    """What a scenario is given: the clients of one kind."""

    async def close(self) -> None: ...


class Stage:
    """One event loop for all scenarios; closes what they leave open."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._closing: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        loop = self._runner.get_loop()
        # Every link of a plain client that is being closed has a thread, for up to a second.
        loop.set_default_executor(ThreadPoolExecutor(100))
        # What becomes of their tasks when a connection breaks is these clients' own affair.
        loop.set_exception_handler(lambda *_: None)
        return self

    def __exit__(self, *error: object) -> None:
        self.run(self._end())
        self._runner.close()

    async def _end(self) -> None:
        await asyncio.gather(*self._closing)

    def run(self, whole: Coroutine[Any, Any, None]) -> None:
        self._runner.run(asyncio.wait_for(whole, PATIENCE_S))

    def close_later(self, player: Player) -> None:
        self._closing.add(asyncio.ensure_future(player.close()))


class Players:
    """The players of both kinds."""

    def __init__(self, stage: Stage, make: Callable[[Kind], Player], *, wait: bool = False) -> None:
        self._stage = stage
        self._make = make
        #: the scenario is over when they are closed, not before
        self._wait = wait

    def play(self, scenario: Callable[[Player], Awaitable[None]]) -> None:
        """Let each play the scenario; tell whose failed."""
        self._stage.run(self._play(scenario))

    async def _play(self, scenario: Callable[[Player], Awaitable[None]]) -> None:
        playing = (self._play_as(kind, scenario) for kind in KINDS)
        told = await asyncio.gather(*playing, return_exceptions=True)
        failures = [one for one in told if isinstance(one, Exception)]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup("both failed", failures)

    async def _play_as(self, kind: Kind, scenario: Callable[[Player], Awaitable[None]]) -> None:
        player = self._make(kind)
        try:
            await scenario(player)
        except BaseException as error:
            error.add_note(f"This was the {kind} client.")
            raise
        finally:
            if self._wait:
                await player.close()
            else:
                self._stage.close_later(player)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Have a test played by both, each in its `world` or `town`; other fixtures stay the same."""

    @functools.wraps(test)
    def wrapper(**fixtures: Any) -> None:
        [(name, players)] = [
            (name, one) for name, one in fixtures.items() if isinstance(one, Players)
        ]
        players.play(lambda player: test(**{**fixtures, name: player}))

    return wrapper
