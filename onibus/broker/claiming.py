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

from onibus.broker.claim_rows import HeldClaim
from onibus.core.commands import Claim, ReleaseClaimed
from onibus.core.errors import PartitionOffline, Refused
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.core.partition import Partition
from onibus.shard.replies import Outcome
from onibus.shard.seat import Seat

if TYPE_CHECKING:
    from onibus.broker.claims import Claims

#: Messages that one slice holds, reads, completes or releases.
CLAIM_SLICE = 1_000


class Staging:
    """A claim whose messages are being set aside."""

    def __init__(
        self,
        claims: Claims,
        held: HeldClaim,
        seats: list[Seat],
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
        self._seats = deque(seats)
        self._share = min(CLAIM_SLICE, -(-limit // len(seats)))
        if held.entity.outlet_settings().requires_session:
            # A claim closes the message session: its other messages would wait for another claim.
            self._share = BATCH_COUNT_MAX
        self._taken: dict[Seat, int] = {}
        self._partitions: dict[Seat, Partition] = {}
        self._count = self._bytes = 0
        self._unsynced = 0
        self._failed = False

    def go_on(self) -> None:
        """Set the next slice aside; after the last, wait for the disks."""
        try:
            if self._seats and self._count < self._limit:
                self._slice(self._seats.popleft())
                self._claims.broker.call_soon(self.go_on)
            elif self._taken:
                self._sync()
            else:
                self._staged(None)
        except Exception as error:
            self.fail(error)

    def _slice(self, seat: Seat) -> None:
        wanted = min(self._share, self._limit - self._count)
        room = None if self._max_bytes is None else self._max_bytes - self._bytes
        try:
            partition = seat.online()
            entity, owner = self._held.entity, self._held.owner
            command = Claim(entity.number, owner, wanted, room, at_least_one=not self._count)
            taken = self._claims.use(entity, seat, command)
        except PartitionOffline:
            if seat in self._taken:
                raise
            return
        count = taken.count
        if not count:
            return
        self._taken[seat] = self._taken.get(seat, 0) + count
        self._partitions.setdefault(seat, partition)
        self._held.taken.add(seat.index)
        self._count += count
        self._bytes += taken.bytes
        if count == wanted:
            self._seats.append(seat)

    def _sync(self) -> None:
        """Wait until every store has the held messages on its disk."""
        for seat, partition in self._partitions.items():
            if seat.partition is not partition:
                raise PartitionOffline(f"store {seat.store.name} failed; nothing was claimed")
        stores = list(dict.fromkeys(seat.store for seat in self._taken))
        self._unsynced = len(stores)
        for store in stores:
            store.answer_after(Outcome(self._synced), None)

    def _synced(self, outcome: Outcome) -> None:
        if self._failed:
            return
        if outcome.error is not None:
            self.fail(PartitionOffline(f"nothing was claimed: {outcome.error}"))
            return
        self._unsynced -= 1
        if not self._unsynced:
            self._held.content.partitions = sorted(
                (seat.index, count) for seat, count in self._taken.items()
            )
            self._staged(None)

    def fail(self, error: BaseException) -> None:
        """Release the messages of online partitions; other partitions do it when they are back."""
        self._failed = True
        entity = self._held.entity
        for seat in self._taken:
            with contextlib.suppress(Refused):
                command = ReleaseClaimed(entity.number, self._held.owner, None)
                self._claims.use(entity, seat, command)
        self._staged(error)
