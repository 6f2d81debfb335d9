"""How far the clocks that people read are from bus time.

Every deadline is in bus time, which measures durations only and is never shown. Two things need
the wall clock: showing a deadline, and moments that people give (scheduled messages). Both go
through the offsets that the broker keeps up to date (`shard/clock.py`), so a clock that is set
changes two numbers and no stored deadline.
"""

from __future__ import annotations


class ClockOffsets:
    """What to add to bus time, in milliseconds. The broker and all partitions share one."""

    __slots__ = ("moments", "wall")

    def __init__(self, wall: int = 0, moments: int = 0) -> None:
        #: the wall clock, for stamps and for showing deadlines
        self.wall = wall
        #: the same as far as it is proven: scheduled messages follow it
        self.moments = moments

    def shown(self, deadline: int) -> int:
        """Return a deadline as the wall clock will show it."""
        return deadline + self.wall
