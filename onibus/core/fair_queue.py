"""Fair delivery: messages of noisy groups come after those of quiet ones (B10).

While no group is noisy, a fair queue is the runs that every queue has. While one is, `take` reads
the rows that come next, and moves those of noisy groups into a queue of that group: each once, and
a bounded number in one call. A group that is quiet again keeps its queue until it is empty; its
messages are delivered in the order of their ordinals with all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, merge
from typing import TYPE_CHECKING

from onibus.core.limits import FAIR_BYTES_READ_MAX, FAIR_ROWS_READ_MAX
from onibus.core.noise import Noise, group_of
from onibus.core.numbering import ORDINALS_END
from onibus.core.runs import Runs

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription

#: Rows that one read covers.
_CHUNK = 128


class FairQueue(Runs):
    """The ready messages of a queue with fair delivery.

    The runs themselves hold messages that were not found to be of a noisy group.
    """

    __slots__ = ("_queues", "_subscription", "noise")

    def __init__(self, subscription: Subscription, ready: Runs) -> None:
        super().__init__()
        self.firsts, self.lasts, self.count = ready.firsts, ready.lasts, ready.count
        self._subscription = subscription
        self._queues: dict[str, Runs] = {}
        self.noise = Noise(subscription)
        self.noise.take_up(subscription.holds.values())

    def as_runs(self) -> Runs:
        """Return everything as the runs of a queue without fair delivery."""
        ready = Runs()
        every = [super().runs(), *(queue.runs() for queue in self._queues.values())]
        for first, last in merge(*every):
            ready.add(first, last)
        return ready

    def first(self) -> int:
        """Return the lowest ordinal, or ORDINALS_END."""
        return min([super().first(), *(queue.first() for queue in self._queues.values())])

    def ordinals(self, start: int = 0) -> Iterator[int]:
        """Yield all ordinals from `start` on, in order."""
        every = [queue.ordinals(start) for queue in self._queues.values()]
        return merge(super().ordinals(start), *every)

    def noisy(self, now: int) -> dict[str, tuple[int, int]]:
        """Return the noisy groups: messages in flight, and those found to wait behind others.

        Without a backlog no group is noisy.
        """
        if self.first() == ORDINALS_END:
            return {}
        found = {}
        for group, in_flight in self.noise.noisy(now).items():
            queue = self._queues.get(group)
            found[group] = (in_flight, 0 if queue is None else queue.count)
        return found

    def remove(self, ordinal: int) -> bool:
        """Take one ordinal out, wherever it is; return whether it was in."""
        if super().remove(ordinal):
            return True
        for group, queue in self._queues.items():
            if queue.remove(ordinal):
                if not queue:
                    del self._queues[group]
                return True
        return False

    def take(self, limit: int, below: int, now: int = 0) -> list[int]:
        """Take out and return the next messages to deliver, at most `limit`, all below `below`."""
        noisy = self.noise.noisy(now)
        if not noisy and not self._queues:
            return super().take(limit, below)
        taken = self._take_quiet(limit, below, noisy)
        if noisy and len(taken) < limit:
            taken += self._take_noisy(limit - len(taken), below, noisy)
        return taken

    def _take_quiet(self, limit: int, below: int, noisy: dict[str, int]) -> list[int]:
        """Take messages that are not of a noisy group, in order, as far as one call may search."""
        quiet = [(queue.first(), one) for one, queue in self._queues.items() if one not in noisy]
        heapify(quiet)
        budget, room = FAIR_ROWS_READ_MAX, FAIR_BYTES_READ_MAX
        taken: list[int] = []
        chunk = limit
        while len(taken) < limit:
            wanted = limit - len(taken)
            ahead = quiet[0][0] if quiet else ORDINALS_END
            first = super().first()
            if min(first, ahead) >= below:
                break
            if ahead < first:
                _, group = heappop(quiet)
                queue = self._queues[group]
                other = quiet[0][0] if quiet else ORDINALS_END
                taken += queue.take(wanted, min(below, first, other))
                if queue:
                    heappush(quiet, (queue.first(), group))
                else:
                    del self._queues[group]
            elif not noisy:
                taken += super().take(wanted, min(below, ahead))
            elif budget <= 0 or room <= 0:
                break
            else:
                rows = self._lowest(min(max(chunk, wanted), _CHUNK, budget), min(below, ahead))
                found = self._sort(rows, noisy)
                budget -= len(rows)
                room -= self._bytes(rows)
                chunk = chunk if 2 * len(found) > len(rows) else 2 * len(rows)
                taken += found[:wanted]
                for ordinal in reversed(found[wanted:]):
                    self.add(ordinal, ordinal)
        return taken

    def _lowest(self, limit: int, below: int) -> list[int]:
        """Return the lowest ordinals of the runs, which stay in."""
        found: list[int] = []
        for first, last in super().runs():
            if first >= below or len(found) >= limit:
                break
            found.extend(range(first, min(last, below - 1, first + limit - len(found) - 1) + 1))
        return found

    def _sort(self, ordinals: list[int], noisy: dict[str, int]) -> list[int]:
        """Take the lowest ordinals out; return the quiet ones, and queue the others by group."""
        rows = self._subscription.log.rows(ordinals)
        super().take(len(ordinals), ordinals[-1] + 1)
        quiet = []
        for ordinal, (_, message) in zip(ordinals, rows, strict=True):
            group = group_of(message)
            if group is None or group not in noisy:
                quiet.append(ordinal)
                continue
            queue = self._queues.get(group)
            if queue is None:
                queue = self._queues[group] = Runs()
            queue.add(ordinal, ordinal)
        return quiet

    def _bytes(self, ordinals: list[int]) -> int:
        """Return about how many bytes the rows of these ordinals have."""
        log = self._subscription.log
        first, last = log.find(ordinals[0]), log.find(ordinals[-1])
        return max(first.size // first.rows, last.size // last.rows) * len(ordinals)

    def _take_noisy(self, limit: int, below: int, noisy: dict[str, int]) -> list[int]:
        """Take from the noisy group with the fewest in flight, counting those taken."""
        order = [
            (noisy[group], queue.first(), group)
            for group, queue in self._queues.items()
            if group in noisy and queue.first() < below
        ]
        heapify(order)
        taken: list[int] = []
        while order and len(taken) < limit:
            count, _, group = heappop(order)
            queue = self._queues[group]
            most = 1 if order else limit - len(taken)
            more = queue.take(most, below)
            taken += more
            if not queue:
                del self._queues[group]
            elif queue.first() < below:
                heappush(order, (count + len(more), queue.first(), group))
        return taken
