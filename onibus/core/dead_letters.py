"""Dead-lettered messages that can be received, and those still to be forwarded (B6)."""

from __future__ import annotations

from onibus.core.runs import Runs, as_runs


class DeadLetters(Runs):
    """The ordinals of dead-lettered messages; forwarding skips those that it could not move.

    The skipped ones are not stored: after a restart forwarding tries all of them once more.
    """

    __slots__ = ("_kept", "_onward")

    def __init__(self) -> None:
        super().__init__()
        #: those that forwarding skips, even while they are locked
        self._kept: set[int] = set()
        #: all others, if forwarding skips some
        self._onward: Runs | None = None

    @property
    def onward(self) -> Runs:
        """Return those that may be forwarded."""
        return self if self._onward is None else self._onward

    def keep(self, ordinals: list[int]) -> None:
        """Skip these from now on: the target entity rejected them."""
        if self._onward is None:
            self._onward = Runs()
            self._onward.extend(list(self.runs()))
        for ordinal in ordinals:
            self._onward.remove(ordinal)
        self._kept.update(ordinals)

    def keep_none(self) -> None:
        """Try all of them again: the target entity has changed."""
        self._kept.clear()
        self._onward = None

    def forget(self, ordinal: int) -> None:
        """Drop a message that has left the dead-letter queue."""
        self._kept.discard(ordinal)

    def add(self, first: int, last: int) -> tuple[int, int, int]:
        if self._onward is not None:
            new = [one for one in range(first, last + 1) if one not in self._kept]
            for run in as_runs(new):
                self._onward.add(*run)
        return super().add(first, last)

    def remove(self, ordinal: int) -> bool:
        if self._onward is not None:
            self._onward.remove(ordinal)
        return super().remove(ordinal)

    def take(self, limit: int, below: int, now: int = 0) -> list[int]:
        taken = super().take(limit, below, now)
        if self._onward is not None:
            for ordinal in taken:
                self._onward.remove(ordinal)
        return taken
