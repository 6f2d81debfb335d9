"""Housekeeping of a store: after a number of commits, and a while after the last commit."""

from __future__ import annotations

from collections.abc import Callable

from onibus.core.timers import Timers
from onibus.shard.clock import BusClock
from onibus.shard.commits import CommitLoop
from onibus.shard.threads import StoreThreads

#: Commits between two rounds of a store's housekeeping.
HOUSEKEEPING_COMMITS = 64
#: The time after a commit at which a store keeps house.
HOUSEKEEPING_MS = 2_000


class Housekeeping:
    """One store's housekeeping; `failed` is called when the store turns out to be down."""

    def __init__(
        self,
        name: str,
        threads: StoreThreads,
        timers: Timers,
        clock: BusClock,
        failed: Callable[[CommitLoop, BaseException], None],
    ) -> None:
        self._timer = ("house", name)
        self._threads = threads
        self._timers = timers
        self._clock = clock
        self._failed = failed
        #: how many commits there were when the timer rang last
        self._commits_kept = 0

    def committed(self, loop: CommitLoop) -> None:
        """Note that a commit has ended."""
        if loop.commits % HOUSEKEEPING_COMMITS == 0:
            self.begin(loop)
        elif not self._timers.is_set(self._timer):
            self._timers.set(self._timer, self._clock.now() + HOUSEKEEPING_MS)

    def rang(self, loop: CommitLoop) -> None:
        """Run housekeeping when the timer fires, a while after the commit that set it."""
        self.begin(loop)
        if loop.commits != self._commits_kept:
            # Once more when the store is idle: only then is its write-ahead log truncated.
            self._commits_kept = loop.commits
            self._timers.set(self._timer, self._clock.now() + HOUSEKEEPING_MS)

    def begin(self, loop: CommitLoop) -> None:
        """Run the store's housekeeping parallel to its commits, unless it is running."""
        if not self._threads.housekeeping:
            self._threads.keep_house(loop.store.maintain, lambda error: self._ended(loop, error))

    def _ended(self, loop: CommitLoop, error: BaseException | None) -> None:
        if error is not None:
            loop.abandon(error)
            self._failed(loop, error)
