"""Recover: a partition read back from its store. Rows are loaded, nothing is replayed.

The rows handed in are those of this partition, each kind in key order.
"""

from __future__ import annotations

from array import array
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onibus.core.block import NEVER
from onibus.core.errors import Damaged
from onibus.core.fair_queue import FairQueue
from onibus.core.fans import Fans, decode_fans
from onibus.core.holds import Attempt, Hold
from onibus.core.lifecycle import ASIDE, DEAD, Input, State, advance
from onibus.core.log import BlockPlace, Repair
from onibus.core.mark import Mark
from onibus.core.numbering import ORDINAL, ORDINAL_CODE, ORDINALS_END, SIGNED_END, from_column
from onibus.core.records import (
    ATTEMPTS,
    BLOCK_INDEX,
    COUNTERS,
    DUPLICATES,
    GONE,
    HOLDS,
    ID_RUNS,
    MARKS,
    OUTCOMES,
    RECENT_IDS,
    REPAIRS,
    SESSIONS,
    Row,
    Table,
)
from onibus.core.runs import Runs, as_runs
from onibus.core.sessions import SessionLock

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription

Rows = dict[Table, list[Any]]

#: Which columns recovery reads, where not all: reasons, properties and the entries of blocks stay
#: where they are.
COLUMNS: dict[Table, tuple[str, ...]] = {
    BLOCK_INDEX: BLOCK_INDEX.columns[:-1],
    MARKS: ("partition", "subscription", "ordinal", "state", "due"),
    OUTCOMES: ("partition", "subscription", "first", "last", "time", "size", "stamp"),
}
#: Tables that recovery reads, and the place of `partition` in their rows.
SOURCES: dict[Table, int] = {
    COUNTERS: 0,
    BLOCK_INDEX: 1,
    MARKS: 0,
    GONE: 0,
    HOLDS: 0,
    SESSIONS: 0,
    ATTEMPTS: 0,
    RECENT_IDS: 1,
    ID_RUNS: 1,
    DUPLICATES: 0,
    OUTCOMES: 0,
    REPAIRS: 0,
}
#: Of those, which columns have ordinals.
_ORDINALS: dict[Table, tuple[int, ...]] = {
    BLOCK_INDEX: (2, 3),
    MARKS: (2,),
    GONE: (2, 3),
    DUPLICATES: (4,),
    REPAIRS: (1,),
}


def recover(partition: Partition, rows: Rows) -> list[tuple[Table, Row]]:
    """Load a new partition and its subscriptions from the rows of its store.

    Return the keys of rows that belong to deleted subscriptions.
    """
    floor = partition.log.floor
    _recover_counters(partition, rows.get(COUNTERS, []))
    if partition.log.next_ordinal >= SIGNED_END:
        rows = {table: _with_ordinals(table, found) for table, found in rows.items()}
    partition.log.repairs = [Repair(*row[1:]) for row in rows.get(REPAIRS, [])]
    index = rows.get(BLOCK_INDEX, [])
    places = [BlockPlace(row[0], *row[2:7]) for row in index]
    places.sort(key=attrgetter("first"))
    own, left = _by_subscription(partition, rows)
    if partition.is_topic:
        _recover_fans(partition, index, places, own)
        # A subscription was deleted, and a crash came before its messages were.
        left += [(BLOCK_INDEX, (p.block,)) for p in places if not p.live and p.last < floor]
        places = [place for place in places if place.live or place.last >= floor]
    else:
        for number, subscription in partition.subscriptions.items():
            _recover_gone(subscription, own[number].get(GONE, []))
        _count_live(partition, places)
    partition.log.load(places)
    for number, subscription in partition.subscriptions.items():
        _recover_subscription(subscription, index, own[number])
    partition.ids.recover(rows.get(RECENT_IDS, []), rows.get(ID_RUNS, []))
    trace = sorted(rows.get(DUPLICATES, []), key=lambda row: row[3])
    partition.recent_duplicates.extend((row[2], row[3], row[4]) for row in trace)
    return left


def _with_ordinals(table: Table, rows: list[Any]) -> list[Any]:
    """Return rows whose ordinals the table holds as signed integers, in the order of ordinals."""
    places = _ORDINALS.get(table)
    if places is None:
        return rows
    found = []
    for row in rows:
        values = list(row)
        for place in places:
            values[place] = from_column(values[place])
        found.append(tuple(values))
    return sorted(found, key=itemgetter(*range(table.key)))


def _by_subscription(
    partition: Partition, rows: Rows
) -> tuple[dict[int, Rows], list[tuple[Table, Row]]]:
    """Return the rows of each subscription, and the keys of those that have none."""
    if len(partition.subscriptions) == 1 and not partition.is_topic:
        return {0: rows}, []
    own: dict[int, Rows] = {number: {} for number in partition.subscriptions}
    left: list[tuple[Table, Row]] = []
    for table in (MARKS, GONE, HOLDS, SESSIONS, ATTEMPTS, OUTCOMES):
        for row in rows.get(table, []):
            if row[1] in own:
                own[row[1]].setdefault(table, []).append(row)
            else:
                left.append((table, row[: table.key]))
    return own, left


def _recover_subscription(subscription: Subscription, index: list[Any], rows: Rows) -> None:
    _recover_marks(subscription, rows.get(MARKS, []))
    _recover_ready(subscription, index, rows.get(MARKS, []))
    _recover_sessions(subscription, rows.get(SESSIONS, []))
    _recover_holds(subscription, rows.get(HOLDS, []), rows.get(ATTEMPTS, []))
    subscription.outcomes.load(rows.get(OUTCOMES, []))
    subscription.watch_age(subscription.gone.next_outside(1))


def _recover_counters(partition: Partition, rows: list[Row]) -> None:
    for row in rows:
        values: list[Any] = list(row)
        log = partition.log
        _, _, log.last_stamp, partition.epoch, partition.forgotten_before = values[:5]
        log.next_ordinal, partition.forget_below = map(from_column, (values[1], values[5]))
        partition.duplicates, partition.accessed, partition.seen = values[6:9]
        log.visible_below = log.next_ordinal


def _recover_gone(subscription: Subscription, rows: list[Any]) -> None:
    gone = subscription.gone
    gone.firsts = array(ORDINAL_CODE, [row[2] for row in rows])
    gone.lasts = array(ORDINAL_CODE, [row[3] for row in rows])
    gone.count = sum(gone.lasts) - sum(gone.firsts) + len(rows)


def _count_live(partition: Partition, places: list[BlockPlace]) -> None:
    """Count a queue's live rows, and check that all of them are in one of the blocks."""
    gone = partition.subscription.gone
    covered = 0
    previous = 0
    for place in places:
        if place.first <= previous:
            raise Damaged(f"partition {partition.id}: blocks overlap at {place.first}")
        previous = place.last
        gaps = place.last - place.first + 1 - place.rows
        dead = gone.overlap(place.first, place.last) if gone else 0
        # Compaction leaves out gone rows only, so the gaps are among them.
        place.live = place.rows - (dead - gaps)
        covered += place.live
    missing = partition.log.next_ordinal - 1 - gone.count - covered
    if missing:
        raise Damaged(f"partition {partition.id}: {missing} messages are not in any block")


def _recover_fans(
    partition: Partition, index: list[Any], places: list[BlockPlace], own: dict[int, Rows]
) -> None:
    """Find out what each subscription of a topic still wants, and count that in the blocks."""
    taken: dict[int, list[npt.NDArray[Any]]] = {number: [] for number in own}
    ordinals_of: dict[int, npt.NDArray[Any]] = {}
    for row in index:
        ordinals, by_number = decode_fans(row[8], row[2], row[4])
        ordinals_of[row[0]] = ordinals
        for number, members in by_number.items():
            if number in taken:
                taken[number].append(members)
    wanted: list[npt.NDArray[Any]] = []
    for number, subscription in partition.subscriptions.items():
        members = np.sort(np.concatenate([np.zeros(0, ORDINAL), *taken[number]]))
        _recover_gone(subscription, own[number].get(GONE, []))
        live = members[subscription.gone.outside(members)]
        wanted.append(live)
        subscription.gone = _complement(live.tolist(), partition.log.next_ordinal)
    everything, counts = np.unique(np.concatenate(wanted), return_counts=True)
    for place in places:
        ordinals = ordinals_of[place.block]
        fans = place.fans = Fans(ordinals, np.zeros(len(ordinals), np.uint16))
        ends = np.array((place.first, place.last + 1), ORDINAL)
        start, end = np.searchsorted(everything, ends)
        fans.counts[np.searchsorted(ordinals, everything[start:end])] = counts[start:end]
        place.live = fans.live()


def _complement(live: list[int], next_ordinal: int) -> Runs:
    """Return the ordinals assigned so far that are not among these."""
    gone = Runs()
    start = 1
    for first, last in [*as_runs(live), (next_ordinal, next_ordinal)]:
        if first > start:
            gone.add(start, first - 1)
        start = last + 1
    return gone


def _recover_marks(subscription: Subscription, rows: list[Any]) -> None:
    """Take marks up cold: where each message is and when it comes due; the rest stays on disk."""
    if not rows:
        return
    _, _, numbers, found, dues = zip(*rows, strict=True)
    ordinals, states = array(ORDINAL_CODE, numbers), array("b", found)
    subscription.marks.load(ordinals, states, array("q", dues))
    kinds = np.frombuffer(states, "i1")
    subscription.counts[:] = np.bincount(kinds, minlength=len(State)).tolist()
    for runs, wanted in (
        (subscription.dead, [int(state) for state in DEAD]),
        (subscription.dead_ready, [int(State.DEAD_LETTERED)]),
        (subscription.aside, [int(state) for state in ASIDE]),
    ):
        chosen = np.frombuffer(ordinals, ORDINAL)[np.isin(kinds, wanted)]
        for first, last in as_runs(chosen.tolist()):
            runs.add(first, last)


def _recover_ready(subscription: Subscription, index: list[Any], marks: list[Any]) -> None:
    """Make messages ready that are neither gone nor set aside; holds are applied after that."""
    aside = [row[2] for row in marks if row[3] != State.ACTIVE]
    if not subscription.settings.requires_session:
        _ready_runs(subscription, aside)
        return
    keys = np.frombuffer(
        b"".join([row[7] for row in index if row[7] is not None]),
        np.dtype([("ordinal", ORDINAL), ("hash", "<u8")]),
    )
    ordinals, hashes = keys["ordinal"], keys["hash"]
    keep = (hashes != 0) & subscription.gone.outside(ordinals)
    if aside and len(ordinals):
        keep &= ~_among(ordinals, np.array(aside, ORDINAL))
    subscription.sessions.load(ordinals[keep], hashes[keep])
    for row in marks:
        if row[3] == State.DELAYED:
            subscription.session_of(row[2]).waiting.append(row[2])


def _among(ordinals: npt.NDArray[Any], few: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which ordinals are among a few. All are close together, so use a table of bits."""
    low, high = int(ordinals.min()), int(ordinals.max())
    if high - low > 16 * len(ordinals) + 1_000_000:
        return np.isin(ordinals, few)
    table = np.zeros(high - low + 1, bool)
    table[few[(few >= low) & (few <= high)] - low] = True
    found: npt.NDArray[np.bool_] = table[ordinals - low]
    return found


def _ready_runs(subscription: Subscription, aside: list[int]) -> None:
    """Fill `ready` with the gaps between gone or set-aside messages."""
    ready, gone = subscription.ready, subscription.gone
    taken = sorted([*zip(gone.firsts, gone.lasts, strict=True), *((o, o) for o in aside)])
    start = 1
    for first, last in [*taken, (subscription.log.next_ordinal, ORDINALS_END)]:
        if first > start:
            ready.firsts.append(start)
            ready.lasts.append(first - 1)
            ready.count += first - start
        start = last + 1


def _recover_sessions(subscription: Subscription, rows: list[Any]) -> None:
    for _, _, session_id, state, *held, takeover, state_set in rows:
        session = subscription.sessions.get(session_id)
        # A store of format 2 does not know when a state was set.
        session.state, session.state_set_ms = state, state_set or 0
        until, duration, epoch, check, owner = held
        if until:
            session.lock = SessionLock(epoch, check, until, duration, owner, takeover)
            subscription.timers.set(("session", session_id), until)


def _recover_holds(subscription: Subscription, rows: list[Any], attempts: list[Any]) -> None:
    for _, _, epoch, until, duration, check, session_id, packed, owner in rows:
        hold = Hold(epoch, check, until, duration, session_id, owner)
        pairs = array(ORDINAL_CODE, packed)
        for ordinal, held_until in zip(pairs[::2], pairs[1::2], strict=True):
            if not subscription.is_live(ordinal):
                raise Damaged(f"partition {subscription.key[0]}: {ordinal} is held and gone")
            _hold_again(subscription, ordinal, held_until, hold)
        subscription.holds[epoch] = hold
        if owner:
            subscription.owned[epoch] = hold
        if until != NEVER:
            subscription.watch_hold(hold)
    if isinstance(subscription.ready, FairQueue):
        subscription.ready.noise.take_up(subscription.holds.values())
        subscription.ready.noise.read(subscription.holds.values())
    for _, _, attempt_id, until, packed in attempts:
        attempt = Attempt(until, list(array("q", packed)))
        subscription.attempts[attempt_id] = attempt
        subscription.timers.set(("attempt", attempt_id), until)
        for epoch in attempt.epochs:
            if epoch in subscription.holds:
                subscription.holds[epoch].attempt = attempt_id


def _hold_again(subscription: Subscription, ordinal: int, until: int, hold: Hold) -> None:
    mark = subscription.marks.get(ordinal)
    if mark is None:
        mark = subscription.marks.hot[ordinal] = Mark()
    else:
        subscription.counts[mark.state] -= 1
    if mark.state is State.ACTIVE:
        _take_out(subscription, ordinal, hold)
    elif mark.state is State.DEAD_LETTERED:
        subscription.dead_ready.remove(ordinal)
    elif hold.session is not None and hold.carried:
        _carry(subscription, hold)
    mark.state = advance(mark.state, Input.LOCK)
    mark.hold = hold
    subscription.counts[mark.state] += 1
    hold.ordinals[ordinal] = until


def _carry(subscription: Subscription, hold: Hold) -> None:
    """Attach a hold to the lock of its session."""
    assert hold.session is not None
    lock = subscription.sessions.get(hold.session).lock
    if lock is None:
        raise Damaged(f"partition {subscription.key[0]}: a session holds messages without a lock")
    lock.holds.add(hold.epoch)


def _take_out(subscription: Subscription, ordinal: int, hold: Hold) -> None:
    """Take a held message out of the ready ones."""
    if not subscription.settings.requires_session:
        subscription.ready.remove(ordinal)
        return
    if hold.session is None:
        session = hold.groups[ordinal] = subscription.session_of(ordinal)
    else:
        session = subscription.sessions.get(hold.session)
    session.ready.remove(ordinal)
    if hold.carried:
        _carry(subscription, hold)
    else:
        strictly = bool(hold.owner) or subscription.settings.strict_groups
        session.fly([ordinal], strictly=strictly)
    subscription.sessions.offer(session)
