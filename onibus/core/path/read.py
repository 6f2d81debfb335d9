"""Read the log: which blocks have the rows between two numbers, and which rows are missing.

Finding the places is cheap. A separate thread then reads the rows while commits run, so a block may
have been deleted or rewritten in between; the read is then planned again (gateway/reading.py).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from onibus.core.commands import (
    CheckLog,
    FindEnds,
    FindLost,
    FindPosition,
    FindReach,
    FindSince,
    FindTime,
    HasBlock,
    HasOutcomes,
    ListStamps,
    LogEnds,
    Piece,
    PlanLog,
    PlanOutcomes,
    Stamps,
)
from onibus.core.errors import InvalidArgument, LogGap
from onibus.core.outcomes import OutcomePlace
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.log import Log
    from onibus.core.partition import Partition

#: Blocks, or rows of outcomes, that one slice of reading takes.
PIECES_A_SLICE = 1_000


def find_ends(
    partition: Partition, command: FindEnds, now: int, wall: int, out: WriteBatch
) -> LogEnds:
    """Return the ends of the log, or of the outcomes of a subscription."""
    if command.outcomes_of is None:
        log = partition.log
        return LogEnds(log.complete_from, log.visible_below, log.next_ordinal)
    outcomes = partition.subscriptions[command.outcomes_of].outcomes
    return LogEnds(outcomes.first_number, outcomes.visible_below, outcomes.next_number)


def find_position(
    partition: Partition, command: FindPosition, now: int, wall: int, out: WriteBatch
) -> int:
    """Return the ordinal of a number that was assigned, or of the next one."""
    number = command.number
    if command.outcomes_of is not None:
        following = partition.subscriptions[command.outcomes_of].outcomes.visible_below
        if not 0 < number <= following:
            raise InvalidArgument(
                f"{number!r} is not the number of an outcome: the next is {following}"
            )
        return number
    log, numbering = partition.log, partition.numbering
    for ordinal in numbering.candidates(number, log.visible_below + 1):
        return ordinal
    raise InvalidArgument(
        f"{number!r} is not a sequence number of partition {partition.index}: "
        f"the next one is {numbering.number(log.visible_below)}"
    )


def find_lost(
    partition: Partition, command: FindLost, now: int, wall: int, out: WriteBatch
) -> tuple[int, int] | None:
    """Return the first run of missing rows from a position on."""
    position = command.position
    if command.outcomes_of is None:
        return first_hole(partition.log, position, partition.log.visible_below)
    first = partition.subscriptions[command.outcomes_of].outcomes.first_number
    return (position, first - 1) if position < first else None


def find_time(
    partition: Partition, command: FindTime, now: int, wall: int, out: WriteBatch
) -> int | None:
    """Return a time near the row at a position."""
    if command.outcomes_of is None:
        log, at = partition.log, partition.log.reaching(command.position)
        return log.last_stamp_of(log.places[at]) if at < len(log.places) else None
    outcomes = partition.subscriptions[command.outcomes_of].outcomes
    places = outcomes.places(command.position, command.position + 1, 1)
    return min((one.stamp for one in places), default=None)


def list_stamps(
    partition: Partition, command: ListStamps, now: int, wall: int, out: WriteBatch
) -> Stamps:
    """Return the last timestamp of the log, and where timestamps were set back."""
    return Stamps(partition.log.last_stamp, list(partition.log.repairs))


def has_block(
    partition: Partition, command: HasBlock, now: int, wall: int, out: WriteBatch
) -> bool:
    """Return whether a row of the log is in that block still."""
    log, at = partition.log, partition.log.reaching(command.ordinal)
    return at < len(log.places) and log.places[at].block == command.block


def has_outcomes(
    partition: Partition, command: HasOutcomes, now: int, wall: int, out: WriteBatch
) -> bool:
    """Return whether outcomes are where a plan found them."""
    outcomes, place = partition.subscriptions[command.subscription].outcomes, command.place
    return place in outcomes.places(place.first, place.last + 1, 1)


def first_hole(log: Log, start: int, end: int) -> tuple[int, int] | None:
    """Return the first run of ordinals from start on, below end, that have no rows any more."""
    if start >= log.complete_from:
        return None
    expected = start
    for at in range(log.reaching(start), len(log.places)):
        place = log.places[at]
        if expected >= end:
            return None
        if place.first > expected:
            break
        if place.contiguous:
            expected = place.last + 1
            continue
        for ordinal in log.read(place).index["ordinal"].tolist():
            if ordinal > expected:
                return (expected, min(ordinal, end) - 1) if expected < end else None
            if ordinal == expected:
                expected += 1
    if expected >= end:
        return None
    at = log.reaching(expected)
    following = log.places[at].first if at < len(log.places) else end
    return expected, min(following, end) - 1


def check_log(
    partition: Partition, command: CheckLog, now: int, wall: int, out: WriteBatch
) -> None:
    """Reject a range of the log in which rows are missing."""
    _check_complete(partition, command.start, command.end)


def _check_complete(partition: Partition, start: int, end: int) -> None:
    hole = first_hole(partition.log, start, end)
    if hole is not None:
        first, last = (partition.numbering.number(ordinal) for ordinal in hole)
        raise LogGap(
            f"the log of partition {partition.index} no longer has {first} to {last}", first, last
        )


def plan_log(
    partition: Partition, command: PlanLog, now: int, wall: int, out: WriteBatch
) -> list[Piece]:
    """Return what a slice of reading takes."""
    start, end, size = command.start, command.end, command.size
    _check_complete(partition, start, end)
    log = partition.log
    pieces: list[Piece] = []
    for at in range(log.reaching(start), len(log.places)):
        place = log.places[at]
        if place.first >= end or len(pieces) == PIECES_A_SLICE or (pieces and place.size > size):
            break
        size -= place.size
        first, last = max(place.first, start), min(place.last, end - 1)
        pieces.append(Piece(place.block, first, last, place.size, log.uncommitted(place)))
    return pieces


def find_since(
    partition: Partition, command: FindSince, now: int, wall: int, out: WriteBatch
) -> int:
    """Return the first ordinal, or number of an outcome, of a time or later."""
    if command.outcomes_of is None:
        return first_since(partition.log, command.since_ms)
    return partition.subscriptions[command.outcomes_of].outcomes.since(command.since_ms)


def first_since(log: Log, time: int) -> int:
    """Return the ordinal of the first row that was enqueued at a time or after it.

    It searches only where no row is missing. If no row is that young, it returns the next ordinal.
    """
    start = log.reaching(log.complete_from)
    # Stamps never run backwards (S4), except where an operator set them back.
    ends = [log.reaching(repair.ordinal) for repair in log.repairs]
    for end in [*ends, len(log.places)]:
        if end < start:
            continue
        at = bisect_left(log.places, time, lo=start, hi=end, key=log.last_stamp_of)
        for place in (*log.places[at : at + 1], *log.places[end : end + 1]):
            index = log.read(place).index
            young = index["ordinal"][index["stamp"] >= time]
            if len(young):
                return min(max(int(young[0]), log.complete_from), log.visible_below)
        start = end
    return log.visible_below


def find_reach(
    partition: Partition, command: FindReach, now: int, wall: int, out: WriteBatch
) -> int:
    """Return the ordinal before which durable rows have at most `size` bytes.

    At least one row is included. Rows of a block count as equally large.
    """
    log, start, size = partition.log, command.start, command.size
    end, position = log.visible_below, start
    for at in range(log.reaching(start), len(log.places)):
        place = log.places[at]
        if place.first >= end:
            break
        first = max(place.first, start)
        row_size = max(place.size // place.rows, 1)
        fitting = size // row_size
        if fitting <= place.last - first:
            position = first + fitting
            break
        size -= (place.last - first + 1) * row_size
        position = place.last + 1
    return min(max(position, start + 1), end)


def plan_outcomes(
    partition: Partition, command: PlanOutcomes, now: int, wall: int, out: WriteBatch
) -> list[OutcomePlace]:
    """Return the rows of outcomes that a slice of reading takes."""
    outcomes = partition.subscriptions[command.subscription].outcomes
    start, end = command.start, command.end
    if start < min(outcomes.first_number, end):
        last = min(outcomes.first_number, end) - 1
        raise LogGap(f"the log no longer has outcomes {start} to {last}", start, last)
    return outcomes.places(start, end, PIECES_A_SLICE)
