"""The sessions of a subscription: each a queue of ordinals, a lock and a state.

After a restart most sessions are *cold*: three numpy arrays, until a client uses one. So a hundred
thousand sessions cost nothing to recover and little to keep.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from onibus.core.numbering import ORDINAL, ORDINAL_CODE, ORDINALS_END

#: After which ordinal a message is ready again, and after how many receives.
Turn = tuple[int, int]


class SessionLock:
    """A hold on a session, by one receiver at a time.

    Its epoch and check are those of the receiver that has it now. A receiver that presents the
    takeover token of a non-exclusive lock gets it, with the messages that it carries (B9).
    """

    __slots__ = ("check", "duration", "epoch", "holds", "owner", "takeover", "until")

    def __init__(
        self,
        epoch: int,
        check: int,
        until: int,
        duration: int,
        owner: str,
        takeover: bytes | None = None,
    ) -> None:
        #: the name that its holder gives; for display only, it proves nothing
        self.owner = owner
        #: epochs of the holds that it carries
        self.holds: set[int] = set()
        self.epoch = epoch
        self.check = check
        self.until = until
        self.duration = duration
        #: the token by which another receiver takes it over; None if it is exclusive (B4)
        self.takeover = takeover


class Session:
    """One session, or one group of a FIFO queue."""

    __slots__ = (
        "blocking", "hash", "id", "in_flight", "lock", "ready", "state", "state_set_ms", "turns",
        "waiting",
    )  # fmt: skip

    def __init__(self, session_id: str, ready: array[int] | None = None) -> None:
        self.id = session_id
        #: its hash in the index of a block, once computed; else 0
        self.hash = 0
        #: ordinals that can be delivered, in order
        self.ready: array[int] = ready if ready is not None else array(ORDINAL_CODE)
        #: abandoned with a delay: they keep their place and block the messages after them (X4)
        self.waiting: list[int] = []
        #: received from a FIFO queue and not settled: they block the messages after them (F10)
        self.in_flight: list[int] = []
        #: held by a claim or a multi-partition operation, or in flight in a queue with
        #: `strict_groups`: they block the whole session (R7)
        self.blocking: list[int] = []
        #: the turns of messages that are ready again after a delivery
        self.turns: dict[int, Turn] | None = None
        self.lock: SessionLock | None = None
        self.state: bytes | None = None
        #: when the state was set, by the wall clock; 0 if a version before format 3 set it
        self.state_set_ms = 0

    def barrier(self) -> int:
        """Return the ordinal from which on nothing is delivered (F10)."""
        if self.blocking:
            return 0
        barrier = self.waiting[0] if self.waiting else ORDINALS_END
        return min(barrier, self.in_flight[0]) if self.in_flight else barrier

    def fly(self, ordinals: list[int], *, strictly: bool) -> None:
        """Hold messages that were taken; `strictly`: they block the whole session."""
        if strictly:
            self.blocking = sorted(self.blocking + ordinals)
        elif self.in_flight:
            self.in_flight = sorted(self.in_flight + ordinals)
        else:
            self.in_flight = ordinals

    def land(self, ordinal: int) -> None:
        """Release a message that was held."""
        if ordinal in self.in_flight:
            self.in_flight.remove(ordinal)
        elif ordinal in self.blocking:
            self.blocking.remove(ordinal)
        if self.turns is not None:
            self.forget_turn(ordinal)

    def turn(self, ordinal: int) -> Turn | None:
        """Return the turn of a message; None if its number says its place."""
        return None if self.turns is None else self.turns.get(ordinal)

    def forget_turn(self, ordinal: int) -> None:
        """Forget the turn of a message that is not ready any longer."""
        if self.turns is not None:
            self.turns.pop(ordinal, None)
            self.turns = self.turns or None

    def take(self, limit: int, below: int) -> list[int]:
        """Take out the first ordinals, in order, all lower than `below` and the barrier."""
        barrier, ready = self.barrier(), self.ready
        if barrier < below:
            below = barrier
        taken = ready[:limit].tolist()
        if taken and taken[-1] >= below:
            del taken[bisect_left(taken, below) :]
        del ready[: len(taken)]
        return taken

    @property
    def in_use(self) -> bool:
        """Whether it is locked, or any of its messages is held (F10, R7)."""
        return self.lock is not None or bool(self.in_flight or self.blocking)

    @property
    def idle(self) -> bool:
        """Return whether it has nothing left to keep."""
        return not (self.ready or self.waiting or self.in_use) and self.state is None


class Sessions:
    """All sessions of one subscription in one partition."""

    def __init__(self, secret: bytes) -> None:
        self._hasher = blake2b(digest_size=8, key=secret)
        self._hot: dict[str, Session] = {}
        self._cold = ColdSessions()
        #: (first ready ordinal, session): entries may be outdated, never missing
        self._available: list[tuple[int, str]] = []
        #: the same for sessions whose first message has a turn: (turn, that message, session)
        self._again: list[tuple[Turn, int, str]] = []
        #: receives that delivered something since the start
        self.receives = 0

    def hash(self, session_id: str) -> int:
        """Return the hash that stands for a session in a block's index; never 0."""
        session = self._hot.get(session_id)
        if session is not None and session.hash:
            return session.hash
        # A copy takes less time than a new one with its key.
        hasher = self._hasher.copy()
        hasher.update(session_id.encode())
        found = int.from_bytes(hasher.digest(), "little") or 1
        if session is not None:
            session.hash = found
        return found

    def load(self, ordinals: npt.NDArray[Any], hashes: npt.NDArray[Any]) -> None:
        """Load the messages that waited at the last stop, before anything else is done."""
        self._cold = ColdSessions(ordinals, hashes)

    def find(self, session_id: str) -> Session | None:
        """Return a session that is known."""
        session = self._hot.get(session_id)
        if session is None and self._cold:
            ready = self._cold.take(self.hash(session_id))
            if ready is not None:
                session = self._warm(session_id, ready)
        return session

    def get(self, session_id: str) -> Session:
        """Return a session, made now if it was not known."""
        session = self.find(session_id)
        if session is None:
            session = self._hot[session_id] = Session(session_id)
        return session

    def _warm(self, session_id: str, ready: array[int]) -> Session:
        session = self._hot[session_id] = Session(session_id, ready)
        self.offer(session)
        return session

    def forget_idle(self, session: Session) -> None:
        """Drop a session that has nothing left to keep."""
        if session.idle:
            self._hot.pop(session.id, None)

    def append(self, first: int, session_ids: Sequence[str | None]) -> None:
        """Add messages that have just been accepted, with ordinals from `first` on."""
        hot = self._hot
        for ordinal, session_id in enumerate(session_ids, first):
            assert session_id is not None
            session = hot.get(session_id)
            if session is None:
                session = self.get(session_id)
            ready = session.ready
            ready.append(ordinal)
            if len(ready) == 1:
                self.offer(session)

    def give_back(self, session: Session, ordinal: int, behind: int = 0) -> None:
        """Put a message back at its number's place.

        With `behind`, its session is offered after those whose first message has that ordinal or a
        lower one, and after those that were put back before the last receive (F10).
        """
        insort(session.ready, ordinal)
        if behind:
            if session.turns is None:
                session.turns = {}
            session.turns[ordinal] = (behind, self.receives)
        self.offer(session)

    def remove(self, session: Session, ordinal: int) -> None:
        """Take out a message that is ready."""
        was_first = session.ready[0] == ordinal
        session.ready.remove(ordinal)
        session.forget_turn(ordinal)
        if was_first:
            self.offer(session)

    def offer(self, session: Session) -> None:
        """Offer a session that may have become available, or has a new first message."""
        if session.ready:
            first = session.ready[0]
            turn = None if session.turns is None else session.turns.get(first)
            if turn is None:
                heappush(self._available, (first, session.id))
            else:
                heappush(self._again, (turn, first, session.id))
            if len(self._available) + len(self._again) > 2 * len(self._hot) + 64:
                self._sweep()

    def _sweep(self) -> None:
        """Drop outdated entries: no receive does if all receivers accept sessions by name."""
        self._available, self._again = [], []
        for session in self._hot.values():
            if session.ready:
                first = session.ready[0]
                turn = session.turn(first)
                if turn is None:
                    self._available.append((first, session.id))
                else:
                    self._again.append((turn, first, session.id))
        heapify(self._available)
        heapify(self._again)

    def next_free(
        self, below: int, name_of: Callable[[int], str], *, whole: bool = True
    ) -> Session | None:
        """Take and return the free session whose turn it is: its first message has waited longest.

        The caller holds it, or offers it again. `whole`: none of its messages may be held.
        `name_of` tells a message's SessionId.
        """
        found = self._next(below, name_of)
        if not whole:
            return found
        used: list[Session] = []
        while found is not None and found.in_use:
            used.append(found)
            found = self._next(below, name_of)
        for session in used:
            self.offer(session)
        return found

    def _next(self, below: int, name_of: Callable[[int], str]) -> Session | None:
        while True:
            cold_first = self._cold.first()
            hot_first = self._available[0][0] if self._available else ORDINALS_END
            first = min(cold_first, hot_first)
            turn: Turn | None = None
            if self._again and (first >= below or self._again[0][0][0] < first):
                # A session with a turn was delivered before, so it is below.
                turn, first, session_id = heappop(self._again)
            elif first >= below:
                return None
            elif cold_first < hot_first:
                self._warm(name_of(cold_first), self._cold.take_first())
                continue
            else:
                first, session_id = heappop(self._available)
            session = self._hot.get(session_id)
            if (
                session is not None
                and session.lock is None
                and session.ready
                and session.ready[0] == first
                and first < session.barrier()
                and (turn is None if session.turns is None else session.turns.get(first) == turn)
            ):
                return session

    def first_cold(self) -> int:
        """Return the lowest ordinal that waits in a session not used since the start.

        It is ORDINALS_END if no ordinal waits.
        """
        return self._cold.first()

    def hot(self) -> Collection[Session]:
        """Return all other sessions: up to millions, so walk them in slices."""
        return self._hot.values()

    def kept(self) -> list[str]:
        """Return the sessions that may have their own row."""
        return list(self._hot)

    def all(self, name_of: Callable[[int], str]) -> Iterator[Session]:
        """Yield every session, warming the cold ones."""
        while self.warm_some(name_of, _WARMED_AT_ONCE):
            pass
        yield from list(self._hot.values())

    def warm_some(self, name_of: Callable[[int], str], most: int) -> bool:
        """Warm some of the cold sessions; return whether there are more."""
        for _ in range(most):
            if self._cold.first() == ORDINALS_END:
                return False
            self._warm(name_of(self._cold.first()), self._cold.take_first())
        return True


_WARMED_AT_ONCE = 1_000


#: This many sessions are looked up by scanning all cold ordinals; then an index is built.
_LOOKED_THROUGH = 32


class ColdSessions:
    """Sessions as they were found at the start: the ordinals that wait, each with its hash.

    A scan finds the first sessions that clients use, in a millisecond for a million messages.
    Sorting them takes a hundred milliseconds, and a restart should not wait for it.
    """

    def __init__(
        self,
        ordinals: npt.NDArray[Any] | None = None,
        hashes: npt.NDArray[Any] | None = None,
    ) -> None:
        self._ordinals = np.zeros(0, ORDINAL) if ordinals is None else ordinals
        self._hashes = np.zeros(0, "u8") if hashes is None else hashes
        if (self._ordinals[1:] < self._ordinals[:-1]).any():
            # Compaction writes old ordinals into young blocks.
            order = np.argsort(self._ordinals)
            self._ordinals, self._hashes = self._ordinals[order], self._hashes[order]
        self._taken = np.zeros(len(self._ordinals), bool)
        self._left = len(self._ordinals)
        self._next = 0
        self._asked = 0
        #: places sorted by hash, then by ordinal, and the hashes in that order
        self._order: npt.NDArray[Any] | None = None
        self._sorted = self._hashes

    def __bool__(self) -> bool:
        return self._left > 0

    def first(self) -> int:
        """Return the lowest ordinal of all cold sessions."""
        while self._next < len(self._taken) and self._taken[self._next]:
            self._next += 1
        return int(self._ordinals[self._next]) if self._next < len(self._taken) else ORDINALS_END

    def take_first(self) -> array[int]:
        """Take out the session whose first ordinal is lowest."""
        return self._take(self._places(int(self._hashes[self._next])))

    def take(self, session_hash: int) -> array[int] | None:
        """Take out a session by its hash."""
        places = self._places(session_hash)
        return self._take(places) if len(places) and not self._taken[places[0]] else None

    def _places(self, session_hash: int) -> npt.NDArray[Any]:
        wanted = np.uint64(session_hash)
        self._asked += 1
        if self._order is None and self._asked <= _LOOKED_THROUGH:
            return np.flatnonzero(self._hashes == wanted)
        if self._order is None:
            self._order = np.argsort(self._hashes, kind="stable")
            self._sorted = self._hashes[self._order]
        start = np.searchsorted(self._sorted, wanted, side="left")
        return self._order[start : np.searchsorted(self._sorted, wanted, side="right")]

    def _take(self, places: npt.NDArray[Any]) -> array[int]:
        self._taken[places] = True
        self._left -= len(places)
        return array(ORDINAL_CODE, self._ordinals[places].tobytes())
