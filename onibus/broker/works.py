"""Works: multi-partition operations, which are atomic.

If one store has all partitions, a work is one store commit. Otherwise:

    stage     each store keeps its parts, invisible and unnumbered (table `staged`)
    decide    one row of the namespace's store (table `works`) says that it will happen
    publish   each store carries its parts out, and deletes them in the same store commit

A crash before the decision leaves undecided parts: the broker deletes them when it opens their
store, and releases the messages that they held. After a decision it carries them out then. A store
that fails after the decision does its parts when it is open again; the pending call fails with
`Unknown`.

The content of a `works` row is the MessagePack of `WorkRow`. A row that says `decided` stays until
every partition has done its part. Ids of works rise. After a crash the broker may reuse an id that
only parts in an offline store have: the row lists the partitions of its work, which distinguishes
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from onibus.broker.turns import Turn, is_large
from onibus.broker.work import Parts, Publication, Results, Work, WorkRow, decode_row, encode_row
from onibus.core.commands import (
    CarryOut,
    FindRepeats,
    ListStagedBlocks,
    Publish,
    ReadStaged,
    Stage,
    Stored,
    Unstage,
)
from onibus.core.errors import EntityNotFound, OnibusError, PartitionOffline, Refused, Unknown
from onibus.core.path.work import forget as forget_part
from onibus.core.records import WORKS, WriteBatch
from onibus.core.staged import Part
from onibus.shard.replies import Outcome, Reply, answer, fail

if TYPE_CHECKING:
    from onibus.broker.broker import Broker
    from onibus.broker.entity import Entity
    from onibus.broker.namespace import RuleDecision
    from onibus.shard.seat import Seat
    from onibus.shard.shard import Shard
    from onibus.store.interface import Store

#: Parts that wait to be published are kept in memory up to this many bytes, for all works together;
#: other parts are read back from their stores.
KEPT_BYTES_MAX = 128 << 20
#: Rows that are published before other commands get their turn.
SLICE_ROWS = 5_000


class Works:
    """All works over several stores that are staged, decided or being published."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._works: dict[int, Work] = {}
        self._kept = 0
        self._next = 0
        #: parts that wait for their turn to be published, and replies that wait for them
        self._in_turn = 0
        self._waiting: list[Reply] = []

    def open(self, store: Store) -> None:
        """Read the works that were staged or decided when the namespace's store was last open."""
        scanned: Any = store.scan(WORKS)
        rows = {work: decode_row(content) for work, content in scanned}
        for work in [one for one in self._works.values() if one.id not in rows]:
            if not work.decided and not work.waiting:
                # Its decision was on its way when the namespace's store failed, and got lost.
                self._abort(work, Unknown("the namespace's store failed"))
        for work_id, row in sorted(rows.items(), key=lambda one: one[1].order or one[0]):
            self._next = max(self._next, work_id, row.order)
            known = self._works.get(work_id)
            if known is None:
                parts: dict[int, Part | None] = dict.fromkeys(row.partitions)
                known = self._works[work_id] = Work(work_id, parts, row.note, Outcome())
                known.waiting.clear()
            known.deciding = False
            known.order = row.order or work_id
            if row.decided and not known.decided:
                self._decided(known)

    def when_published(self, reply: Reply) -> None:
        """Reply once open stores show what was decided before they were opened.

        A store that fails over it is not waited for: it publishes when it is open again.
        """
        if self._in_turn:
            self._waiting.append(reply)
            return
        decided = [one for one in self._works.values() if one.decided]
        seats = [seat for one in decided for seat in self._seats(one.waiting)]
        stores = dict.fromkeys(seat.store for seat in seats if seat.partition is not None)
        left = len(stores)

        def published(outcome: Outcome) -> None:
            nonlocal left
            left -= 1
            if not left:
                answer(reply, None)

        if not stores:
            answer(reply, None)
        for store in stores:
            store.answer_after(Outcome(published), None)

    # A work, from its first step

    def do(self, parts: Parts, now: int, reply: Reply, rules: RuleDecision | None = None) -> None:
        """Carry out a work; the reply gets `Results` when all of it is durable.

        The caller has brought the partitions to `now`, and found the changes at that moment. The
        row that decides changes `rules` too: messages that the work sends follow the new ones.
        """
        stores = list(dict.fromkeys(seat.store for seat in parts))
        for seat in parts:
            seat.online()
        at_once = len(stores) == 1 and rules is None
        self.check_disks(parts, 1 if at_once else 2)
        if at_once:
            self._at_once(stores[0], parts, now, reply)
            return
        by_id = {seat.id: seat for seat in parts}

        def published(outcome: Outcome) -> None:
            gone = [seat for seat in parts if seat.id not in (outcome.value or ())]
            if outcome.error is not None:
                fail(reply, outcome.error)
            elif gone:
                fail(reply, Unknown(f"{gone[0].entity.name} was deleted during the operation"))
            else:
                answer(reply, {by_id[one]: sent for one, sent in outcome.value.items()})

        self.stage(parts, now, None, Outcome(published), rules)

    def check_disks(self, parts: Parts, times: int) -> None:
        """Reject a work that sends messages if a disk has no room for all of them.

        They are stored twice if they are staged before they are published.
        """
        size = sum([part.size for part in parts.values() if len(part.batch)]) * times
        for store in dict.fromkeys(seat.store for seat, part in parts.items() if len(part.batch)):
            store.check_disk(size)

    def _at_once(self, store: Shard, parts: Parts, now: int, reply: Reply) -> None:
        """Everything is in one store: one commit."""
        broker = self._broker
        commands = {
            seat: CarryOut(part, part.take(broker.apply(seat, FindRepeats(part), now)))
            for seat, part in parts.items()
        }
        results: Results = store.apply_together(commands, now)
        store.answer_after(reply, results)

    def stage(
        self,
        parts: Parts,
        now: int,
        note: Any,
        reply: Reply,
        rules: RuleDecision | None = None,
    ) -> int:
        """Stage a work. Without a note it is decided and published as soon as it is staged.

        With one it waits for `decide`, and the reply gets its id when it is staged.
        """
        self._next += 1
        by_id: dict[int, Part | None] = {seat.id: part for seat, part in parts.items()}
        work = self._works[self._next] = Work(self._next, by_id, note, reply)
        if rules is not None:
            work.rules = rules
            rules.begin()
        work.size = sum(part.size for part in parts.values())
        self._broker.disk.staged += work.size
        for seat, part in parts.items():
            try:
                self._broker.apply(seat, Stage(work.id, part), now)
            except OnibusError as error:
                self._abort(work, error)
                break
            self._after_commit(seat, partial(self._staged, work, seat.id))
        if not parts:
            # It changes rules only. The caller knows its id before it is decided.
            self._broker.call_soon(partial(self._record, work))
        return work.id

    def _staged(self, work: Work, seat_id: int, outcome: Outcome) -> None:
        if work.id not in self._works:
            return
        if outcome.error is not None:
            self._abort(work, outcome.error)
            return
        work.waiting.pop(seat_id, None)
        if not work.waiting:
            self._record(work)

    def _record(self, work: Work) -> None:
        """Write the row of a work that is staged; without a note, it decides."""
        if work.id not in self._works:
            return
        row = WorkRow(work.note is None, list(work.parts), work.note)
        batch = WriteBatch()
        batch.put(WORKS, (work.id, encode_row(row)))
        if work.rules is not None:
            work.rules.write(batch)
        try:
            self._broker.namespace.commit(batch, Outcome(partial(self._recorded, work)))
        except OnibusError as error:
            self._abort(work, error)

    def _recorded(self, work: Work, outcome: Outcome) -> None:
        """Continue once the namespace's store has the work's row, or has failed."""
        if outcome.error is not None:
            # Whether the row is there shows when the namespace's store is open again.
            if work.rules is not None:
                work.rules.end()
            fail(work.reply, outcome.error)
        elif work.note is not None:
            self._keep(work)
            answer(work.reply, work.id)
        else:
            if work.rules is not None:
                work.rules.decided()
            self._decided(work)

    def _keep(self, work: Work) -> None:
        """Keep the parts of a work that waits in memory too, as long as there is room."""
        size = sum(part.kept_bytes for part in work.parts.values() if part is not None)
        if self._kept + size <= KEPT_BYTES_MAX:
            work.kept = size
            self._kept += size
        else:
            work.parts = dict.fromkeys(work.parts)

    def _take_out(self, work_id: int) -> Work | None:
        """Remove a work and return it."""
        work = self._works.pop(work_id, None)
        if work is not None:
            self._kept -= work.kept
            self._broker.disk.staged -= work.size
        return work

    def _abort(self, work: Work, error: BaseException) -> None:
        """Drop a work that will not happen, and delete its staged parts."""
        self._take_out(work.id)
        if work.rules is not None:
            work.rules.end()
        self._unstage(work)
        if isinstance(error, Unknown):
            # Nothing was decided, so nothing has happened, nor will.
            error = PartitionOffline(f"nothing changed: {error}")
        fail(work.reply, error)

    def _unstage(self, work: Work) -> None:
        for seat in self._seats(work.parts):
            with contextlib.suppress(OnibusError):
                blocks = self._blocks(seat, work.id, 0, work.parts[seat.id])
                self._broker.apply(seat, Unstage(work.id, [0], blocks))

    # Publishing

    def notes(self) -> dict[int, Any]:
        """Return the notes of works that are staged and not decided."""
        return {
            one.id: one.note
            for one in self._works.values()
            if one.note is not None and not (one.decided or one.deciding or one.waiting)
        }

    def decide(
        self,
        chosen: Iterable[int],
        dropped: Iterable[int],
        records: WriteBatch,
        then: Callable[[], None] | None,
        reply: Reply,
    ) -> None:
        """Decide staged works and forget others, with one commit and these records.

        `then` is called when it is durable; the reply gets the results of each work when all are
        published.
        """
        works = [self._works[work] for work in chosen]
        lost = [self._works[work] for work in dropped]
        for work in works:
            self._next += 1
            work.order = self._next
            row = WorkRow(True, list(work.parts), work.note, work.order)
            records.put(WORKS, (work.id, encode_row(row)))
        for work in lost:
            records.delete(WORKS, (work.id,))
        left = len(works)
        results: dict[int, dict[int, Stored]] = {}

        def published(work: Work, outcome: Outcome) -> None:
            nonlocal left
            left -= 1
            if outcome.error is not None:
                fail(reply, outcome.error)
                return
            results[work.id] = outcome.value
            if not left:
                answer(reply, results)

        def decided(outcome: Outcome) -> None:
            if outcome.error is not None:
                fail(reply, outcome.error)
                return
            if then is not None:
                then()
            for work in lost:
                self._take_out(work.id)
                self._unstage(work)
            for work in works:
                work.reply = Outcome(partial(published, work))
            self._publish_all(works)
            if not works:
                answer(reply, results)

        self._broker.namespace.commit(records, Outcome(decided))
        for work in (*works, *lost):
            work.deciding = True

    def _publish_all(self, works: list[Work]) -> None:
        """Publish decided works in their order, a slice at a time."""
        rows = 0
        for at, work in enumerate(works):
            if rows >= SLICE_ROWS:
                self._in_turn += 1
                self._broker.turns.soon(partial(self._publish_rest, works[at:]))
                return
            for part in work.parts.values():
                rows += SLICE_ROWS if part is None else len(part.batch)
            # The namespace's store may have been reopened in between, and have found it.
            if not work.decided:
                self._decided(work)

    def _publish_rest(self, works: list[Work]) -> None:
        if not self._broker.closed:
            self._publish_all(works)
        self._turn_over()

    def _turn_over(self) -> None:
        self._in_turn -= 1
        if not self._in_turn:
            waiting, self._waiting = self._waiting, []
            for reply in waiting:
                self.when_published(reply)

    @property
    def publishing(self) -> bool:
        """Whether decided parts wait for their turn."""
        return self._in_turn > 0

    def _decided(self, work: Work) -> None:
        work.decided = True
        work.waiting = dict.fromkeys(work.parts)
        for seat_id in list(work.parts):
            seat = self._broker.seat(seat_id)
            if seat is None:
                # Its entity is gone, and everything in it.
                self._published(work, seat_id, Outcome())
            elif seat.partition is None:
                self._late(work, seat)
            else:
                self._publish(work, seat, 0, work.parts[seat_id])
        if not work.parts:
            self._finish(work)

    def _late(self, work: Work, seat: Seat) -> None:
        fail(
            work.reply,
            Unknown(
                f"committed; partition {seat.index} of {seat.entity.name} applies its part when "
                "it is online again"
            ),
        )

    def _publish(self, work: Work, seat: Seat, piece: int, part: Part | None) -> None:
        """Carry out a decided part, after what waits before it; costly rules run first."""
        try:
            content, now = part, self._broker.clock.now()
            if content is None:
                content = self._broker.apply(seat, ReadStaged(work.id, piece), now)
            if content is None:
                # It was done before; only the row of the work was left.
                self._published(work, seat.id, Outcome())
                return
            rules = not content.only and content.plan is None
            large = rules and is_large(seat.entity, content.batch)
            if not len(content.batch) or (seat.entity.lane is None and not large):
                self._carry_out(work, seat, piece, content)
                return
            if content.rename:
                # Messages get their new ids now: a plan is for the messages that it has seen.
                content.take(self._broker.apply(seat, FindRepeats(content), now))
        except OnibusError:
            self._late(work, seat)
            return
        self._publish_in_turn(work, seat, piece, content, rules)

    def _publish_in_turn(self, work: Work, seat: Seat, piece: int, part: Part, rules: bool) -> None:
        partition = seat.partition
        planned = [(seat, part.batch, partial(setattr, part, "plan"))] if rules else []

        def run() -> None:
            if seat.deleted:
                self._published(work, seat.id, Outcome())
            elif seat.partition is None:
                self._late(work, seat)
            elif seat.partition is partition:
                self._carry_out(work, seat, piece, part)
            # Otherwise its store was reopened, and publishes the parts it finds.
            self._turn_over()

        self._in_turn += 1
        turn = Turn([seat.entity], planned, run, Publication(work.id, seat.id), stops=False)
        self._broker.turns.take(turn)

    def _carry_out(self, work: Work, seat: Seat, piece: int, part: Part) -> None:
        try:
            work.results[seat.id] = self._broker.apply(seat, Publish(work.id, piece, part))
        except OnibusError:
            self._late(work, seat)
            return
        self._after_commit(seat, partial(self._published, work, seat.id))

    def _published(self, work: Work, seat_id: int, outcome: Outcome) -> None:
        """Record that a partition has done its part; delete the work's row when all have."""
        if outcome.error is not None:
            fail(work.reply, outcome.error)
            return
        work.waiting.pop(seat_id, None)
        if not work.waiting:
            self._finish(work)

    def _finish(self, work: Work) -> None:
        """Complete a work that every partition has done, and delete its row."""
        if self._take_out(work.id) is None:
            return
        answer(work.reply, work.results)
        batch = WriteBatch()
        batch.delete(WORKS, (work.id,))
        # If this is lost, the next opening finds no partition with a part of it.
        with contextlib.suppress(Refused):
            self._broker.namespace.commit(batch, Outcome())

    def forget(self, entity: Entity) -> None:
        """Drop the parts staged in the partitions of an entity that is being deleted."""
        seats = {seat.id: seat for seat in entity.seats}
        for work in [one for one in self._works.values() if one.parts.keys() & seats.keys()]:
            for seat_id in [one for one in work.parts if one in seats]:
                loop = seats[seat_id].store.loop
                if loop is None:
                    continue
                out = WriteBatch()
                with contextlib.suppress(OnibusError):
                    blocks = self._blocks(seats[seat_id], work.id, 0, work.parts[seat_id])
                    forget_part(work.id, seat_id, [0], blocks, out)
                    loop.write(out)
            if work.note is not None and not (work.decided or work.deciding):
                # It was staged to be published to that entity.
                self._take_out(work.id)
                fail(work.reply, EntityNotFound(f"{entity.name} was deleted"))

    # Stores that are opened

    def store_opened(self, store: Shard, staged: dict[int, dict[int, list[int]]]) -> None:
        """Continue the parts that a store had staged: partition → work → pieces."""
        for seat in list(store.seats.values()):
            parts = staged.get(seat.id, {})
            for work_id in sorted(parts, key=self._order):
                self._go_on(seat, work_id, parts[work_id])
        for work in [one for one in self._works.values() if one.decided]:
            for seat_id in list(work.waiting):
                if self._has_done(work, self._broker.seat(seat_id), store, staged):
                    self._published(work, seat_id, Outcome())

    def _order(self, work_id: int) -> int:
        work = self._works.get(work_id)
        return work_id if work is None else work.order

    def _has_done(
        self,
        work: Work,
        seat: Seat | None,
        store: Shard,
        staged: dict[int, dict[int, list[int]]],
    ) -> bool:
        """Return whether a partition, deleted or of the opened store, has no part left."""
        if seat is None:
            return True
        return seat.store is store and work.id not in staged.get(seat.id, {})

    def _go_on(self, seat: Seat, work_id: int, pieces: list[int]) -> None:
        work = self._works.get(work_id)
        if work is None or seat.id not in work.parts:
            with contextlib.suppress(OnibusError):
                blocks = [b for piece in pieces for b in self._blocks(seat, work_id, piece, None)]
                self._broker.apply(seat, Unstage(work_id, pieces, blocks))
        elif work.decided:
            for piece in pieces:
                self._publish(work, seat, piece, None)

    def _blocks(self, seat: Seat, work_id: int, piece: int, part: Part | None) -> list[int]:
        """Return the blocks that have the messages of a part; not all parts are in memory."""
        if part is not None:
            return [body.block for body in part.staged]
        command = ListStagedBlocks(work_id, piece)
        return self._broker.apply(seat, command, self._broker.clock.now())

    def _seats(self, ids: Iterable[int]) -> list[Seat]:
        found = [self._broker.seat(seat_id) for seat_id in ids]
        return [seat for seat in found if seat is not None]

    def _after_commit(self, seat: Seat, then: Any) -> None:
        seat.store.answer_after(Outcome(then), None)
