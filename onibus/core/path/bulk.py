"""Enqueue whole columns: the kernel of path/enqueue.py for a batch that came in Arrow.

The same steps, deduplicate → stamp → store → show, and the same records. Only the blocks differ:
large ones keep their messages in columns (core/arrow_block.py). Rows that are staged first (R6) are
written then, as blocks without an index: publishing adds the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onibus.core.arrow_block import EncodedBody, encode_arrow, messages_of
from onibus.core.block import ENTRY, MESSAGE, NEVER, SCHEDULED, encode_rows, pack_entries
from onibus.core.limits import BULK_BLOCK_BYTES_MAX
from onibus.core.log import StagedBlock
from onibus.core.message import Message, encode
from onibus.core.numbering import ORDINAL, Ordinals, ordinals_from
from onibus.core.path.admit_arrow import FOREVER, Body, Numbers, PreparedBatch
from onibus.core.path.deduplicate import find_originals
from onibus.core.path.enqueue import Placed, note_duplicate, put_block, remember
from onibus.core.path.fan_out import FanOut
from onibus.core.path.plan import Bit, Plan
from onibus.core.path.stamp import stamp
from onibus.core.records import BLOCKS, WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition

#: Fewer rows than this are encoded one by one: an Arrow body adds 2 KB.
ARROW_ROWS_MIN = 64
#: Batches of fewer rows are staged as they are; larger ones as blocks, which become part of the log
#: without being written again.
STAGED_ROWS_MIN = 64
#: Rows made into messages at once, and the steps (core/rules/subject.py) of one, about.
ROWS_READ, ROW_STEPS = 200, 50
#: The same in bytes of properties: at once, and in one step.
BYTES_READ, STEP_BYTES = 64 << 10, 5


@dataclass(frozen=True, slots=True)
class SentRows:
    """The outcome of a batch's rows in one partition."""

    #: the sequence number of each row, or of the message that it repeats
    numbers: Numbers
    #: which of them were dropped as duplicates
    dropped: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.numbers)


def find_duplicates(partition: Partition, batch: PreparedBatch, now: int) -> list[int]:
    """Return what each row repeats (path/deduplicate.py). Reads, and changes nothing."""
    return find_originals(
        batch.hashes,
        batch.owners,
        len(batch),
        partition.ids,
        partition.forget_before(now),
        partition.forget_below,
    )


def encode_ahead(batch: PreparedBatch, to_stage: bool = False) -> None:
    """Encode the blocks that a batch becomes if all of it is new, as it mostly is."""
    apart = to_stage and staged_apart(batch)
    for start, end in _blocks(batch.sizes):
        columns = batch.columns.slice(start, end - start)
        if apart or end - start >= ARROW_ROWS_MIN:
            batch.bodies[start, end] = EncodedBody(columns)
        else:
            for at, message in enumerate(messages_of(columns), start):
                batch.rows[at] = encode(message)


def staged_apart(batch: PreparedBatch) -> bool:
    """Return whether the rows of a batch are staged as blocks."""
    return len(batch) >= STAGED_ROWS_MIN


def stage(partition: Partition, batch: PreparedBatch, out: WriteBatch) -> None:
    """Write the rows of a large batch as blocks, which wait for their index."""
    if not staged_apart(batch):
        return
    staged = []
    for start, end in _blocks(batch.sizes):
        body = batch.bodies.get((start, end))
        if body is None:
            body = EncodedBody(batch.columns.slice(start, end - start))
        block = partition.log.pages.new_id()
        out.put(BLOCKS, (block, body.staged))
        staged.append(Body(block, end - start, len(body.staged)))
    batch.set_aside(staged, partition.log.pages.read_staged, keep=partition.is_topic)


def unstage(staged: Iterable[Body], out: WriteBatch) -> None:
    """Delete blocks that were staged and are not part of the log."""
    for body in staged:
        out.delete(BLOCKS, (body.block,))


def send(
    partition: Partition,
    batch: PreparedBatch,
    originals: list[int],
    now: int,
    wall: int,
    out: WriteBatch,
    plan: Plan | None = None,
) -> SentRows:
    """Store the rows that `find_duplicates` found new; return the outcome of each row in order."""
    dropped = np.array([original != -1 for original in originals], bool)
    fresh = batch
    if dropped.any():
        fresh = batch.take(np.flatnonzero(~dropped).tolist())
        unstage(batch.staged, out)
    stored = _store(partition, fresh, now, wall, out, plan) if len(fresh) else np.zeros(0, ORDINAL)
    partition.subscription.tally.accepted += len(stored)
    recorded = stored if isinstance(fresh.owners, range) else stored[list(fresh.owners)]
    remember(partition, fresh.hashes, recorded.tolist(), now, out)
    ordinals = np.empty(len(batch), ORDINAL)
    ordinals[~dropped] = stored
    for at in np.flatnonzero(dropped).tolist():
        original = originals[at]
        # An original of this batch was stored, so its own ordinal is known by now.
        ordinals[at] = ordinals[-2 - original] if original < 0 else original
        message_id = batch.columns.column("message_id")[at].as_py()
        note_duplicate(partition, message_id, int(ordinals[at]), now, out)
    return SentRows(partition.numbering.numbers(ordinals), dropped)


def _blocks(sizes: Numbers) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the rows that go together into one block."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        full = (int(ends[start - 1]) if start else 0) + BULK_BLOCK_BYTES_MAX
        end = max(int(np.searchsorted(ends, full, side="right")), start + 1)
        yield start, end
        start = end


def _store(
    partition: Partition,
    batch: PreparedBatch,
    now: int,
    wall: int,
    out: WriteBatch,
    plan: Plan | None,
) -> Ordinals:
    """Store rows, duplicates or not; return their ordinals."""
    ordinals = np.empty(len(batch), ORDINAL)
    for start, end, staged in _spans(batch):
        at = start
        while at < end:
            first, count, moment = stamp(partition, end - at, wall, out)
            rows = (at, at + count)
            fan = None if plan is None else plan.fan(partition, rows, [batch])
            body = staged if rows == (start, end) else None
            _store_block(partition, batch, rows, first, moment, now, wall, out, fan, body)
            ordinals[at : at + count] = ordinals_from(first, count)
            at += count
        if staged is not None and body is None:
            # Its numbers have a gap: its rows were stored again, in two blocks.
            unstage([staged], out)
    return ordinals


def _spans(batch: PreparedBatch) -> Iterator[tuple[int, int, Body | None]]:
    """Yield (start, end) of the rows that go together into one block, and where they are staged."""
    if not batch.staged:
        for start, end in _blocks(batch.sizes):
            yield start, end, None
    end = 0
    for body in batch.staged:
        start, end = end, end + body.rows
        yield start, end, body


def _store_block(
    partition: Partition,
    batch: PreparedBatch,
    rows: tuple[int, int],
    first: int,
    moment: int,
    now: int,
    wall: int,
    out: WriteBatch,
    fan: FanOut | None,
    staged: Body | None,
) -> None:
    """Make a block of rows with ordinals from `first` on, and show it to its subscriptions."""
    start, end = rows
    count = end - start

    def columns() -> pa.RecordBatch:
        return batch.columns.slice(start, count)

    placing, ttls = batch.placing.slice(start, count), batch.ttls[start:end]
    expires = expiries(ttls, now)
    kinds = np.full(count, MESSAGE)
    scheduled = _scheduled(placing, now + partition.offsets.moments)
    if fan is not None and fan.scheduled != [at for at, _ in scheduled]:
        # Since the plan was made a message came due, or the clock was set.
        fan = None
    for at, _ in scheduled:
        # Its time to live counts from its activation, as a row of its own (S6).
        expires[at] = NEVER
        kinds[at] = SCHEDULED
    sessions, hashes, keys = _sessions(partition, placing.column("session_id"), first)
    payload: bytes | StagedBlock
    if staged is not None:
        entries = pack_entries(first, moment, now, expires, hashes, kinds)
        payload = StagedBlock(staged.block, entries, staged.size + count * ENTRY.size)
    elif count < ARROW_ROWS_MIN:
        if all(at in batch.rows for at in range(start, end)):
            encoded = [batch.rows[at] for at in range(start, end)]
        else:
            encoded = [encode(message) for message in messages_of(columns())]
        payload = encode_rows(
            first, moment, now, expires.tolist(), hashes.tolist(), kinds.tolist(), encoded
        )
    else:
        ordinals, body = ordinals_from(first, count), batch.bodies.get(rows)
        payload = encode_arrow(ordinals, moment, now, expires, hashes, kinds, columns(), body)
    waiting = [(first + at, due) for at, due in scheduled]
    block = Placed(
        first, moment, payload, int(expires.min()), sessions, keys, waiting, fan=fan,
        groups=lambda: _groups(placing),
    )  # fmt: skip
    if delay_ms := partition.settings.delivery_delay_ms:
        due = {ordinal for ordinal, _ in waiting}
        everyone = range(first, first + count)
        block.delayed.extend((one, now + delay_ms) for one in everyone if one not in due)
    put_block(partition, block, lambda: messages_of(columns()), now, wall, out)


def plan(partition: Partition, batch: PreparedBatch, now: int) -> Plan:
    """Return the fan-out of a batch, if all of it is new, to be computed before it is sent."""

    def fans() -> Iterator[Bit]:
        lengths = batch.property_bytes()
        for start, end, _ in _spans(batch):
            messages: list[Message] = []
            for at, count in _readings(lengths, start, end):
                messages += messages_of(batch.columns.slice(at, count))
                yield reading_steps(lengths[at : at + count])
            columns = batch.columns.slice(start, end - start)
            scheduled = _scheduled(columns, now + partition.offsets.moments)
            fan = FanOut(partition, messages, [at for at, _ in scheduled])
            yield (start, end), [batch], fan

    return Plan(partition, fans())


def reading_steps(lengths: Numbers) -> int:
    """Return the steps of reading rows whose properties have these sizes, about."""
    return ROW_STEPS * len(lengths) + int(lengths.sum()) // STEP_BYTES


def _readings(lengths: Numbers, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows that are read at once."""
    ends = np.cumsum(lengths[start:end])
    at = 0
    while at < len(ends):
        full = (int(ends[at - 1]) if at else 0) + BYTES_READ
        most = min(at + ROWS_READ, len(ends))
        after = min(max(int(np.searchsorted(ends, full, side="right")), at + 1), most)
        yield start + at, after - at
        at = after


def _scheduled(columns: pa.RecordBatch, moment: int) -> list[tuple[int, int]]:
    """Return the rows that are scheduled for later than this moment, and for when."""
    dues = dues_of(columns.column("scheduled_enqueue_time_ms"), moment)
    return [(at, int(dues[at])) for at in np.flatnonzero(dues).tolist()]


def expiries(ttls: Numbers, now: int | Numbers) -> Numbers:
    """Return when rows that are enqueued at `now`, one time or one for each, expire."""
    expires: Numbers = np.where(ttls == FOREVER, NEVER, now + ttls)
    return expires


def dues_of(column: pa.Array, moment: int | Numbers) -> Numbers:
    """Return the moment that each row is scheduled for; 0 for none, or a time in the past."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64)
    given = column.is_valid().to_numpy(zero_copy_only=False)
    dues: Numbers = column.fill_null(0).to_numpy()
    return np.where(given & (dues > moment), dues, 0)


def _groups(columns: pa.RecordBatch) -> list[str | None]:
    """Return the groups of rows, each once (core/noise.py)."""
    both = pc.coalesce(columns.column("session_id"), columns.column("partition_key"))
    found: list[str | None] = both.unique().to_pylist()
    return found


def _sessions(
    partition: Partition, column: pa.Array, first: int
) -> tuple[list[str | None], npt.NDArray[Any], bytes | None]:
    """Return SessionIds, their hashes, and what a block's index has of them."""
    count = len(column)
    hashes = np.zeros(count, "<u8")
    if column.null_count == count or not (
        partition.is_topic or partition.settings.requires_session
    ):
        return [None] * count, hashes, None
    coded = column.dictionary_encode()
    hash_of = partition.subscription.sessions.hash
    known = np.array([hash_of(name) for name in coded.dictionary.to_pylist()], "<u8")
    present = coded.is_valid().to_numpy(zero_copy_only=False)
    places = pc.fill_null(coded.indices, 0).to_numpy()
    hashes[present] = known[places[present]]
    keys = np.empty((count, 2), "<u8")
    keys[:, 0] = ordinals_from(first, count)
    keys[:, 1] = hashes
    return column.to_pylist(), hashes, keys.tobytes()
