"""A clock that a test moves by hand."""

from __future__ import annotations


class SimulatedClock:
    """The clocks of a machine, in milliseconds: `wall` may be wrong, `monotonic` restarts."""

    __slots__ = ("_boots", "_monotonic", "_wall", "passed")

    def __init__(self, wall: int = 1_600_000_000_000, monotonic: int = 0) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._boots = 1
        #: how much time really passed
        self.passed = 0

    def wall(self) -> int:
        return self._wall

    def monotonic(self) -> int:
        return self._monotonic

    def boot(self) -> str:
        return f"boot {self._boots}"

    def advance(self, ms: int) -> None:
        """Let time pass."""
        assert ms >= 0, "time passes forwards; `jump` sets the wall clock back"
        self._wall += ms
        self._monotonic += ms
        self.passed += ms

    def jump(self, ms: int) -> None:
        """Set the wall clock, forwards or backwards, while no time passes."""
        self._wall += ms

    def reboot(self, off_ms: int, wrong_ms: int) -> None:
        """Switch the machine off for a while; its wall clock is wrong afterwards, or right."""
        self._boots += 1
        self._monotonic = 0
        self._wall += off_ms + wrong_ms
        self.passed += off_ms
