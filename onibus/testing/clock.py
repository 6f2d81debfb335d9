"""A clock that a test moves by hand."""

from __future__ import annotations


class SimulatedClock:
    """Both clocks of a machine, in milliseconds: `wall` may jump, `monotonic` only goes on."""

    __slots__ = ("_monotonic", "_wall")

    def __init__(self, wall: int = 1_600_000_000_000, monotonic: int = 0) -> None:
        self._wall = wall
        self._monotonic = monotonic

    def wall(self) -> int:
        return self._wall

    def monotonic(self) -> int:
        return self._monotonic

    def advance(self, ms: int) -> None:
        """Let time pass."""
        assert ms >= 0, "time passes forwards; `jump` sets the wall clock back"
        self._wall += ms
        self._monotonic += ms

    def jump(self, ms: int) -> None:
        """Set the wall clock, forwards or backwards, while no time passes."""
        self._wall += ms
