"""Fair delivery as B10 describes it: every receive is written down, and walked to judge a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.simulator.model_rows import Row

SECOND = 1_000
WINDOW = 60 * SECOND
SILENCE = 300 * SECOND
#: In flight at least, to be noisy by their number; a simulation has fewer in flight than a server.
CROWD = 5


def group_of(row: Row) -> str | None:
    """Return the group of a message; None: it is its own."""
    if row.message.session_id is not None:
        return row.message.session_id
    return row.message.partition_key


@dataclass
class Flight:
    """A message that a receiver got, and how long it had it."""

    ordinal: int
    lock: int
    group: str | None
    start: int
    end: int | None = None


class FairModel:
    """What receivers of one partition have and had."""

    def __init__(self, rows: Mapping[int, Row], read: bool = True) -> None:
        #: with what was held already: its groups are known where the partition was read back
        self.flights: list[Flight] = []
        self.sends: dict[str | None, int] = {}
        #: since when a group is in flight, or was within the window
        self.since: dict[str | None, int] = {}
        #: the time of what changes now
        self.now = 0
        for row in rows.values():
            lock = row.lock
            if lock and row.state == "active" and not (row.dead or lock.work or lock.owner):
                group = group_of(row) if read else None
                self.flights.append(Flight(row.ordinal, lock.id, group, lock.since))
                self.since[group] = max(self.since.get(group, 0), lock.since)

    def look(self, rows: Mapping[int, Row], now: int) -> None:
        """Find out what was released before now."""
        for flight in self.flights:
            lock = rows[flight.ordinal].lock if flight.ordinal in rows else None
            if flight.end is None and (lock is None or lock.id != flight.lock):
                flight.end = self.now
        self.now = now
        # No receive depends on older ones.
        oldest = now - WINDOW - SECOND
        self.flights = [one for one in self.flights if one.end is None or one.end > oldest]

    def sent(self, row: Row, now: int) -> None:
        self.sends[group_of(row)] = now

    def given(self, rows: Iterable[Row], now: int) -> None:
        """A receiver gets messages."""
        for row in rows:
            assert row.lock is not None
            group = group_of(row)
            known = [one for one in self.flights if one.group == group]
            begin = now // SECOND * SECOND - WINDOW
            if not any(one.end is None or one.end >= begin for one in known):
                self.since[group] = now
            self.flights.append(Flight(row.ordinal, row.lock.id, group, now))

    def in_flight(self, group: str | None) -> int:
        return sum(one.end is None and one.group == group for one in self.flights)

    def spent(self, flight: Flight, now: int) -> int:
        """Return how much processing time counts of one message, as of the last whole second."""
        moment = now // SECOND * SECOND
        if flight.end is not None and flight.end < moment:
            gone = flight.end < moment - WINDOW
            return 0 if gone else min(flight.end - flight.start, WINDOW)
        return min(max(moment - flight.start, 0), WINDOW)

    def noisy(self, rows: Mapping[int, Row], now: int) -> set[str | None]:
        """Return the noisy groups."""
        locked = [r for r in rows.values() if r.lock and r.state == "active" and not r.dead]
        everything = sum(self.spent(one, now) for one in self.flights)
        found = set()
        for group in {one.group for one in self.flights} - {None}:
            count = self.in_flight(group)
            crowd = count >= CROWD and count * 10 > len(locked)
            time = sum(self.spent(one, now) for one in self.flights if one.group == group)
            heard = max(self.sends.get(group, 0), self.since[group])
            if (crowd or time * 10 > everything) and now - heard < SILENCE:
                found.add(group)
        return found

    def order(self, ready: list[Row], rows: Mapping[int, Row], now: int) -> list[Row]:
        """Return what is ready in the order in which it is delivered."""
        self.look(rows, now)
        noisy = self.noisy(rows, now)
        ordered = [row for row in ready if group_of(row) not in noisy]
        left = [row for row in ready if group_of(row) in noisy]
        counts = {group: self.in_flight(group) for group in noisy}
        while left:
            row = min(left, key=lambda row: (counts[group_of(row)], row.ordinal))
            left.remove(row)
            ordered.append(row)
            counts[group_of(row)] += 1
        return ordered
