"""Claiming: the broker holds messages of several partitions for one message claim.

The partitions take turns, a slice each, so that a claim is spread over them and no other command
waits long. When every store has the holds on disk, the broker writes the claim's row, which
decides. Messages held without a row, after a failure or a crash, are released.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from onibus.core.commands import Claim, ReleaseClaimed
from onibus.core.errors import PartitionOffline, Refused
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.directory.claim_rows import HeldClaim
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply

if TYPE_CHECKING:
    from onibus.directory.claims import Claims

#: Messages that one slice holds, reads, completes or releases.
CLAIM_SLICE = 1_000


class Staging:
    """A claim whose messages are being set aside."""

    def __init__(
        self,
        claims: Claims,
        held: HeldClaim,
        partitions: list[ShardPartition],
        limit: int,
        max_bytes: int | None,
        staged: Callable[[BaseException | None], None],
    ) -> None:
        self._claims = claims
        self._held = held
        self._limit = limit
        self._max_bytes = max_bytes
        #: called when all of it is on disk, or with the error when nothing is held any longer
        self._staged = staged
        self._ahead = deque(partitions)
        self._share = min(CLAIM_SLICE, -(-limit // len(partitions)))
        if held.entity.outlet_settings().requires_session:
            # A claim closes the message session: its other messages would wait for another claim.
            self._share = BATCH_COUNT_MAX
        self._taken: dict[ShardPartition, int] = {}
        self._openings: dict[ShardPartition, int] = {}
        self._count = self._bytes = 0
        self._unsynced = 0
        self._failed = False

    def go_on(self) -> None:
        """Set the next slice aside; after the last, wait for the disks."""
        try:
            if self._ahead and self._count < self._limit:
                self._slice(self._ahead.popleft())
                self._claims.broker.call_soon(self.go_on)
            elif self._taken:
                self._sync()
            else:
                self._staged(None)
        except Exception as error:
            self.fail(error)

    def _slice(self, partition: ShardPartition) -> None:
        wanted = min(self._share, self._limit - self._count)
        room = None if self._max_bytes is None else self._max_bytes - self._bytes
        try:
            opening = partition.opening
            entity, owner = self._held.entity, self._held.owner
            command = Claim(entity.number, owner, wanted, room, at_least_one=not self._count)
            taken = self._claims.use(entity, partition, command)
        except PartitionOffline:
            if partition in self._taken:
                raise
            return
        count = taken.count
        if not count:
            return
        self._taken[partition] = self._taken.get(partition, 0) + count
        self._openings.setdefault(partition, opening)
        self._held.taken.add(partition.index)
        self._count += count
        self._bytes += taken.bytes
        if count == wanted:
            self._ahead.append(partition)

    def _sync(self) -> None:
        """Wait until every store has the held messages on its disk."""
        for partition, opening in self._openings.items():
            if partition.opening != opening:
                raise PartitionOffline(f"store {partition.store.name} failed; nothing was claimed")
        stores = list(dict.fromkeys(partition.store for partition in self._taken))
        self._unsynced = len(stores)
        for store in stores:
            store.answer_after(KeptReply(self._synced), None)

    def _synced(self, kept: KeptReply) -> None:
        if self._failed:
            return
        if kept.error is not None:
            self.fail(PartitionOffline(f"nothing was claimed: {kept.error}"))
            return
        self._unsynced -= 1
        if not self._unsynced:
            self._held.content.partitions = sorted(
                (partition.index, count) for partition, count in self._taken.items()
            )
            self._staged(None)

    def fail(self, error: BaseException) -> None:
        """Release the messages of online partitions; other partitions do it when they are back."""
        self._failed = True
        entity = self._held.entity
        for partition in self._taken:
            with contextlib.suppress(Refused):
                command = ReleaseClaimed(entity.number, self._held.owner, None)
                self._claims.use(entity, partition, command)
        self._staged(error)
