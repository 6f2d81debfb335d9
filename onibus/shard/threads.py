"""The threads of one store: its writer, housekeeper, reader, prober, and the one that opens it.

A store is closed only when none of them is at work in it. A commit may run for as long as a disk
stalls, and the descriptors it writes to must stay its own until it has returned: the system gives
the number of a closed one to the next file that is opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from onibus.core.errors import OnibusError
from onibus.shard.writer import Done, Work, Writer
from onibus.store.interface import Store

_WRITING, _HOUSEKEEPING, _READING, _PROBING = "", "-housekeeping", "-reading", "-probing"
_OPENING = "-opening"


class StoreThreads:
    """What runs in a store off the thread that owns all state, each kind of it in order."""

    def __init__(self, name: str, make_writer: Callable[[str], Writer]) -> None:
        self._name = name
        self._make_writer = make_writer
        self._threads: dict[str, Writer] = {}
        #: how much of each kind is under way
        kinds = (_WRITING, _HOUSEKEEPING, _READING, _PROBING, _OPENING)
        self._at_work = dict.fromkeys(kinds, 0)
        self._leaving: Store | None = None
        self._then: Callable[[], None] | None = None

    @property
    def housekeeping(self) -> bool:
        """Housekeeping is under way."""
        return self._at_work[_HOUSEKEEPING] > 0

    @property
    def leaving(self) -> bool:
        """Return whether a released store is still in use."""
        return self._leaving is not None

    @property
    def opening(self) -> bool:
        """Return whether the store is being opened."""
        return self._at_work[_OPENING] > 0

    @property
    def in_transit(self) -> bool:
        """Return whether the store is being closed or opened."""
        return self.leaving or self.opening

    def open(self, work: Work, done: Done) -> None:
        """Open the store and read it back, which takes as long as its disk does."""
        self._submit(_OPENING, work, done)

    def write(self, work: Work, done: Done, here: bool = False) -> None:
        """Commit; `here`: on this thread, unless housekeeping uses the store."""
        self._submit(_WRITING, work, done, here and not self.housekeeping)

    def keep_house(self, work: Work, done: Done) -> None:
        """Do something that no commit waits for."""
        self._submit(_HOUSEKEEPING, work, done)

    def read(self, work: Work, done: Done) -> None:
        """Read parallel to the commits."""
        self._submit(_READING, work, done)

    def probe(self, work: Work, done: Done) -> None:
        """Probe the disk, whatever the other threads wait for."""
        self._submit(_PROBING, work, done)

    def _submit(self, kind: str, work: Work, done: Done, here: bool = False) -> None:
        if kind not in self._threads:
            self._threads[kind] = self._make_writer(self._name + kind)
        self._at_work[kind] += 1

        def finished(error: BaseException | None) -> None:
            self._at_work[kind] -= 1
            try:
                done(error)
            finally:
                self._close_unused()

        thread = self._threads[kind]
        if here:
            thread.run_here(work, finished)
        else:
            thread.submit(work, finished)

    def let_go(self, store: Store) -> None:
        """Close a store that failed, as soon as nothing is at work in it."""
        self._leaving = store
        self._close_unused()

    def when_left(self, then: Callable[[], None]) -> None:
        """Call a function as soon as the released store is closed."""
        self._then = then

    def _close_unused(self) -> None:
        if self._leaving is None or any(self._at_work.values()):
            return
        self._close(self._leaving)
        then, self._then = self._then, None
        if then is not None:
            then()

    def _close(self, store: Store) -> None:
        self._leaving = None
        # It failed before; there is nothing more to lose.
        with contextlib.suppress(OnibusError):
            store.close()

    def stop(self) -> None:
        """End the threads when they have done what they were given."""
        for thread in self._threads.values():
            thread.stop()
        self._threads = {}
        if self._leaving is not None:
            self._close(self._leaving)
