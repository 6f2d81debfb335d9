"""Discarding: staged parts of multi-partition operations that were not decided.

A part whose deciding store is offline is in doubt: it stays until that store is open again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from onibus.core.commands import InspectStaged, StagedFacts, Unstage
from onibus.core.errors import OnibusError

if TYPE_CHECKING:
    from onibus.directory.host import Host
    from onibus.shard.partition import ShardPartition

#: A partition and an operation, with the pieces staged there.
Doubtful = dict[tuple["ShardPartition", int], list[int]]


class Discarding:
    """Parts to discard, and those in doubt."""

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        #: by the name of the store that decides
        self._in_doubt: dict[str, Doubtful] = {}

    def discard(self, partition: ShardPartition, work: int, pieces: list[int]) -> None:
        """Discard what was staged for a work that is unknown, unless its decider is down."""
        stores = self._broker.stores
        with contextlib.suppress(OnibusError):
            facts = self.facts(partition, work, pieces)
            for decider, _ in facts:
                if decider in stores and not stores[decider].online:
                    self._in_doubt.setdefault(decider, {})[partition, work] = pieces
                    return
            self._unstage(partition, work, pieces, facts)

    def forget(self, partitions: Container[int]) -> None:
        """Discard what is in doubt in the partitions of an entity that is being deleted."""
        for doubtful in self._in_doubt.values():
            for partition, work in [one for one in doubtful if one[0].id in partitions]:
                pieces = doubtful.pop((partition, work))
                with contextlib.suppress(OnibusError):
                    self._unstage(partition, work, pieces, self.facts(partition, work, pieces))

    def take(self, decider: str) -> Doubtful:
        """Return what was in doubt until a store was opened."""
        return self._in_doubt.pop(decider, {})

    def facts(
        self, partition: ShardPartition, work: int, pieces: Iterable[int]
    ) -> list[StagedFacts]:
        """Return what decides the pieces of a part, and where their messages are."""
        now = self._broker.clock.now()
        return [self._broker.apply(partition, InspectStaged(work, piece), now) for piece in pieces]

    def _unstage(
        self, partition: ShardPartition, work: int, pieces: list[int], facts: list[StagedFacts]
    ) -> None:
        blocks = [block for one in facts for block in one.blocks]
        self._broker.apply(partition, Unstage(work, pieces, blocks))
