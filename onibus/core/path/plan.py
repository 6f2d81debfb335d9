"""Plan: the fan-out of a large batch, computed before the batch is stored.

Rules are run in slices of counted steps, with other commands in between. Storing the batch then
only gives each subscription what was chosen for it. The plan promises nothing: the rules of a
subscription that was changed since, and rules that look at stamps, are run when the batch is
stored; so are those of a block whose rows differ from the plan, because some are duplicates or due
by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

from onibus.core.path.fan_out import FanOut

if TYPE_CHECKING:
    from onibus.core.partition import Partition


#: The rows of a block, in the batch and as they are; and its fan-out. Or steps of finding that out.
Bit = int | tuple[tuple[int, int], Sequence[Any], FanOut]


class Plan:
    """The fan-out of a batch in one partition, as far as it is computed."""

    def __init__(self, partition: Partition, fans: Iterator[Bit]) -> None:
        """Take the blocks that the batch becomes."""
        self._partition = partition
        self._running = self._run(fans)
        self._fans: dict[tuple[int, int], tuple[Sequence[Any], FanOut]] = {}

    def run(self, steps: int) -> int:
        """Run rules for about that many steps; return how many are left, 0 where more is to do."""
        for taken in self._running:
            steps -= taken
            if steps <= 0:
                return 0
        return steps

    def _run(self, fans: Iterator[Bit]) -> Iterator[int]:
        for bit in fans:
            if isinstance(bit, int):
                yield bit
                continue
            place, rows, fan = bit
            self._fans[place] = (rows, fan)
            yield from fan.ahead()

    def fan(
        self, partition: Partition, place: tuple[int, int], rows: Sequence[Any]
    ) -> FanOut | None:
        """Return the fan-out of the block of these rows, or None where the plan has another."""
        planned, fan = self._fans.pop(place, ((), None))
        if partition is self._partition and len(planned) == len(rows):
            return fan if all(map(is_, planned, rows)) else None
        return None
