"""One partition over time: deduplicate → stamp → schedule → expire, for rows with their times.

The broker acts moment by moment; this module acts on many moments at once, as columns:

1. Time never runs backwards: a row that comes before what was seen is taken as coming now.
2. Duplicates follow from the times alone, since an id is recorded when its message arrives,
   scheduled or not (D8): `find_repeats` of core/path/deduplicate.py.
3. New rows, and scheduled rows that are due, are put in the order of their moments; rows due at a
   moment precede rows that arrive then, as in the broker, which passes time before it takes
   anything. Sequence numbers and stamps follow that order (S2, S4, S6).
4. A message expires when its time to live is over, counted from the moment it was enqueued (B2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onibus.core.block import NEVER
from onibus.core.id_runs import Words
from onibus.core.numbering import Numbering
from onibus.core.path.admit_arrow import FOREVER
from onibus.core.path.bulk import dues_of, expiries
from onibus.core.path.deduplicate import find_repeats
from onibus.core.path.stamp import stamps
from onibus.core.timeline.agenda import DUE, PLACE, Agenda
from onibus.core.timeline.chunks import Chunks
from onibus.core.timeline.known_ids import KnownIds

Numbers = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]

#: The columns added to a waiting row: its ordinal as a scheduled one, its time to live.
SCHEDULED_ORDINAL, TTL = "_scheduled_ordinal", "_ttl"
#: The column added to a row that expires.
ORDINAL = "_ordinal"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows in the order in which they came."""

    #: the columns to carry along
    rows: pa.Table
    #: when each one came, in milliseconds; never falls
    times: Numbers
    #: the identities, two words each, and the positions of the rows that have them, in order; those
    #: of one row follow each other
    words: Words | None = None
    owners: Numbers | None = None
    #: when rows become visible; null for at once
    dues: pa.Array | None = None
    #: how long each lives, or FOREVER
    ttls: Numbers | None = None
    #: these name what a duplicate repeats, instead of sequence numbers
    labels: Numbers | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """The outcomes of arrived rows and of those that waited."""

    #: of each arrival: whether it was dropped, and what it repeats
    dropped: Truths
    repeats: Numbers
    #: whether it waits for its time, or did
    scheduled: Truths
    #: sequence number and stamp, as a scheduled one too; meaningless if it was dropped
    numbers: Numbers
    stamps: Numbers
    #: when it expires, or NEVER
    expires: Numbers
    #: rows whose time came, in order, or None; then the same of them
    due: pa.Table | None
    due_scheduled: Numbers
    due_numbers: Numbers
    due_stamps: Numbers
    due_expires: Numbers
    #: rows whose time to live is over, with their ordinals and times, or None
    expired: pa.Table | None


_NONE = np.zeros(0, np.int64)


class Timeline:
    """The state of one partition."""

    def __init__(
        self,
        numbering: Numbering,
        chunks: Chunks,
        window_ms: int = 0,
        expiring: Sequence[str] | None = None,
    ) -> None:
        self.numbering = numbering
        self.chunks = chunks
        self.window_ms = window_ms
        #: the columns kept to report a message that expires; None: expiry is not reported
        self.expiring = expiring
        self.next_ordinal = 1
        self.last_stamp = 0
        self.now = 0
        self.known = KnownIds(chunks)
        self.waiting = Agenda(chunks)
        self.mortal = Agenda(chunks)

    def remembered(self) -> int:
        """Return how many identities are in memory."""
        return len(self.known)

    def take(self, arrivals: Arrivals, until: int = 0) -> Passed:
        """Take rows, and let time pass until then, or until the last of them came."""
        times = np.maximum(arrivals.times, self.now)
        count = len(times)
        if count:
            self.now = int(times[-1])
        until = max(until, self.now)
        originals = self._originals(arrivals, times)
        fresh = np.flatnonzero(originals == -1)
        dues = _NONE if arrivals.dues is None else dues_of(arrivals.dues, times)
        ttls = np.full(count, FOREVER) if arrivals.ttls is None else arrivals.ttls
        due, ordinals, due_ordinals, moments = self._order(
            arrivals, times, fresh, dues, ttls, until
        )
        given = np.empty(count, np.int64)
        given[fresh] = ordinals
        inside = originals < -1
        given[inside] = given[-2 - originals[inside]]
        given[originals >= 0] = originals[originals >= 0]
        self._remember(arrivals, times, fresh, given)
        scheduled = dues > 0 if len(dues) else np.zeros(count, bool)
        scheduled[originals != -1] = False
        stamped = np.zeros(count, np.int64)
        stamped[fresh] = moments[: len(fresh)]
        expires = np.where(scheduled, NEVER, expiries(ttls, times))
        due_scheduled, due_expires = _NONE, _NONE
        if due is not None:
            due_scheduled = due.column(SCHEDULED_ORDINAL).to_numpy()
            due_expires = expiries(due.column(TTL).to_numpy(), due.column(DUE).to_numpy())
            due = due.drop_columns([SCHEDULED_ORDINAL, TTL, DUE, PLACE])
        expired = self._expire(arrivals.rows, fresh, given, expires, due, due_ordinals, due_expires,
                               until)  # fmt: skip
        numbers = self.numbering.numbers
        return Passed(
            originals != -1,
            self._repeats(arrivals, originals, given),
            scheduled,
            numbers(given),
            stamped,
            expires,
            due,
            numbers(due_scheduled),
            numbers(due_ordinals),
            moments[len(fresh) :],
            due_expires,
            expired,
        )

    # Duplicates

    def _originals(self, arrivals: Arrivals, times: Numbers) -> Numbers:
        """Return what each row repeats: -1 for nothing, a recorded ordinal, or -2 - i for row i."""
        count, words, owners = len(times), arrivals.words, arrivals.owners
        if words is None or owners is None or not len(words):
            return np.full(count, -1, np.int64)
        known, recorded = self.known.find(words)
        known[recorded <= times[owners] - self.window_ms] = -1
        # Only rows that may repeat something are checked one by one.
        asked = (known != -1) | _appears_twice(words[:, 0])
        if not asked.any():
            return np.full(count, -1, np.int64)
        suspects = np.zeros(count, bool)
        suspects[owners[asked]] = True
        asked = suspects[owners]
        names = np.ascontiguousarray(words[asked]).view("V16")[:, 0].tolist()
        originals = find_repeats(
            names,
            owners[asked].tolist(),
            known[asked].tolist(),
            count,
            times.tolist(),
            self.window_ms,
        )
        return np.array(originals, np.int64)

    def _remember(self, arrivals: Arrivals, times: Numbers, fresh: Numbers, given: Numbers) -> None:
        words, owners = arrivals.words, arrivals.owners
        if words is None or owners is None:
            return
        if len(fresh) < len(times):
            new = np.zeros(len(times), bool)
            new[fresh] = True
            kept = new[owners]
            words, owners = words[kept], owners[kept]
        labels = given if arrivals.labels is None else arrivals.labels
        self.known.add(words, labels[owners], times[owners], self.now - self.window_ms)

    def _repeats(self, arrivals: Arrivals, originals: Numbers, given: Numbers) -> Numbers:
        """Return what duplicates repeat, as users see it."""
        if arrivals.labels is None:
            return np.where(originals == -1, -1, self.numbering.numbers(given))
        repeats = originals.copy()
        inside = originals < -1
        repeats[inside] = arrivals.labels[-2 - originals[inside]]
        return repeats

    # Numbers and times

    def _order(
        self,
        arrivals: Arrivals,
        times: Numbers,
        fresh: Numbers,
        dues: Numbers,
        ttls: Numbers,
        until: int,
    ) -> tuple[pa.Table | None, Numbers, Numbers, Numbers]:
        """Give ordinals and stamps to new rows and to those that come due.

        Return the rows that come due, the ordinals of the new ones and of these, and the stamps of
        the new ones and then of these.
        """
        count = len(fresh)
        # Places rise with ordinals, and are known before them.
        places = self.next_ordinal + np.arange(count)
        later = np.flatnonzero(dues[fresh]) if len(dues) else _NONE
        soon = later[dues[fresh[later]] <= until]
        due = self._coming(arrivals, fresh[soon], dues, ttls, places[soon], until)
        coming = 0 if due is None else due.num_rows
        ordinals = self.next_ordinal + np.arange(count + coming)
        self.next_ordinal += count + coming
        moments = times[fresh]
        if due is not None:
            at = due.column(DUE).to_numpy()
            moments = np.concatenate((moments, at))
            kinds = np.repeat([1, 0], [count, coming])
            order = np.lexsort((np.arange(count + coming), kinds, moments))
            in_order = ordinals.copy()
            ordinals[order] = in_order
            given = stamps(self.last_stamp, moments[order])
            moments = np.empty_like(moments)
            moments[order] = given
            self.now = max(self.now, int(at[-1]))
        else:
            given = moments = stamps(self.last_stamp, moments)
        if len(given):
            self.last_stamp = int(given[-1])
        self._wait(arrivals, fresh, later, soon, dues, ttls, places, ordinals)
        if due is not None:
            due = _numbered(due, self.next_ordinal - count - coming, ordinals)
        return due, ordinals[:count], ordinals[count:], moments

    def _coming(
        self,
        arrivals: Arrivals,
        chosen: Numbers,
        dues: Numbers,
        ttls: Numbers,
        places: Numbers,
        until: int,
    ) -> pa.Table | None:
        """Return the rows that come due until then, in order; those of now have no number yet."""
        if len(chosen):
            unknown = np.full(len(chosen), -1)
            self._put(arrivals, chosen, dues, ttls, places, unknown)
        return self.waiting.take(until)

    def _wait(
        self,
        arrivals: Arrivals,
        fresh: Numbers,
        later: Numbers,
        soon: Numbers,
        dues: Numbers,
        ttls: Numbers,
        places: Numbers,
        ordinals: Numbers,
    ) -> None:
        """Let the rows that are not due yet wait for their time."""
        rest = later if not len(soon) else np.setdiff1d(later, soon, assume_unique=True)
        if len(rest):
            self._put(arrivals, fresh[rest], dues, ttls, places[rest], ordinals[rest])

    def _put(
        self,
        arrivals: Arrivals,
        chosen: Numbers,
        dues: Numbers,
        ttls: Numbers,
        places: Numbers,
        ordinals: Numbers,
    ) -> None:
        rows = arrivals.rows.take(pa.array(chosen))
        rows = rows.append_column(SCHEDULED_ORDINAL, pa.array(ordinals, pa.int64()))
        rows = rows.append_column(TTL, pa.array(ttls[chosen], pa.int64()))
        self.waiting.add(rows, dues[chosen], places)

    # Expiry

    def _expire(
        self,
        rows: pa.Table,
        fresh: Numbers,
        given: Numbers,
        expires: Numbers,
        due: pa.Table | None,
        due_ordinals: Numbers,
        due_expires: Numbers,
        until: int,
    ) -> pa.Table | None:
        """Watch rows that can expire, and return those that have."""
        if self.expiring is None:
            return None
        mortal = fresh[expires[fresh] != NEVER]
        if len(mortal):
            self._watch(rows.take(pa.array(mortal)), expires[mortal], given[mortal])
        if due is not None:
            chosen = np.flatnonzero(due_expires != NEVER)
            self._watch(due.take(pa.array(chosen)), due_expires[chosen], due_ordinals[chosen])
        return self.mortal.take(until)

    def _watch(self, rows: pa.Table, expires: Numbers, ordinals: Numbers) -> None:
        rows = rows.select([name for name in self.expiring or () if name in rows.column_names])
        rows = rows.append_column(ORDINAL, pa.array(ordinals, pa.int64()))
        self.mortal.add(rows, expires, ordinals)


def _appears_twice(words: npt.NDArray[np.uint64]) -> Truths:
    """Return which values are there more than once."""
    order = words.argsort()
    ordered = words[order]
    same = ordered[1:] == ordered[:-1]
    twice = np.zeros(len(words), bool)
    twice[order[1:][same]] = True
    twice[order[:-1][same]] = True
    return twice


def _numbered(due: pa.Table, first_place: int, ordinals: Numbers) -> pa.Table:
    """Return rows that came due with the numbers they had while they waited."""
    waited = due.column(SCHEDULED_ORDINAL).to_numpy().copy()
    new = waited == -1
    waited[new] = ordinals[due.column(PLACE).to_numpy()[new] - first_place]
    at = due.schema.get_field_index(SCHEDULED_ORDINAL)
    return due.set_column(at, SCHEDULED_ORDINAL, pa.array(waited))
