"""Dead letters that can be received, and which of them may still go on to another entity (B6)."""

from __future__ import annotations

from onibus.core.runs import Runs, as_runs


class DeadLetters(Runs):
    """A set of ordinals; whoever forwards need not look at those that are kept.

    Which are kept is not stored: after a restart all are tried once more.
    """

    __slots__ = ("_kept", "_onward")

    def __init__(self) -> None:
        super().__init__()
        #: those that stay, also while somebody holds them
        self._kept: set[int] = set()
        #: where some are kept: all others
        self._onward: Runs | None = None

    @property
    def onward(self) -> Runs:
        """Those that may go on."""
        return self if self._onward is None else self._onward

    def keep(self, ordinals: list[int]) -> None:
        """These are not taken where they should go: they stay."""
        if self._onward is None:
            self._onward = Runs()
            self._onward.extend(list(self.runs()))
        for ordinal in ordinals:
            self._onward.remove(ordinal)
        self._kept.update(ordinals)

    def keep_none(self) -> None:
        """Where they should go has changed: all may be taken."""
        self._kept.clear()
        self._onward = None

    def forget(self, ordinal: int) -> None:
        """This one is no dead letter any more."""
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
