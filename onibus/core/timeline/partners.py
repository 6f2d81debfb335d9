"""Rows that wait for each other: the deferral of a workflow, without a consumer (L1, L2).

A payment came before its order. A receiver would defer it, remember its sequence number, and
receive it when the order is done. Here a row names what it *needs* and what it *gives*, inside its
workflow:

1. A row that needs nothing, or what was given before, comes out at the moment it arrives.
2. A row whose need was not given waits. It comes out right after the row that gives it; one row may
   so release many, and each of these others in turn, in the order in which they came.
3. A row that has waited for the limit comes out then, marked as one whose partner is missing. It
   still gives what it gives: others need it, not what it needed.
4. A given name is remembered for a time after it was given last.

So a consumer of the rows in this order never meets one before the row it needs, unless it is
marked. Time never runs backwards: a row that comes before what was seen is taken as coming now.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onibus.core.timeline.chunks import Chunks

Numbers = npt.NDArray[np.int64]
Name = tuple[str, str]

#: Outcomes of a row: nothing was needed, it was there or came, it did not come in time.
ALONE, MET, MISSING = "alone", "met", "missing"


@dataclass(frozen=True, slots=True)
class Steps:
    """Rows in the order in which they came, with what each one needs and gives."""

    rows: pa.Table
    times: Numbers
    workflows: list[str | None]
    needs: list[str | None]
    gives: list[str | None]


@dataclass(slots=True)
class _Waiting:
    workflow: str
    needs: str
    gives: str | None
    #: where the row is: a chunk and its position there; or -1 and its position in this batch
    chunk: int
    position: int
    limit: int

    def plain(self) -> list[Any]:
        return [self.workflow, self.needs, self.gives, self.chunk, self.position, self.limit]


class Released:
    """Rows as they come out."""

    def __init__(self) -> None:
        #: (chunk, position) of each, as `_Waiting` has them
        self.places: list[tuple[int, int]] = []
        self.times: list[int] = []
        self.outcomes: list[str] = []
        #: the rows themselves, in order
        self.rows: pa.Table | None = None
        #: their places in the order of all rows that ever came out
        self.numbers: Numbers = np.zeros(0, np.int64)


class Partners:
    """The workflows of one partition."""

    def __init__(self, chunks: Chunks, limit_ms: int, remember_ms: int) -> None:
        self.chunks = chunks
        self.limit_ms = limit_ms
        self.remember_ms = remember_ms
        self.now = 0
        self.released = 0
        #: the names given, and when last; the oldest first
        self._given: dict[Name, int] = {}
        #: rows that wait, by a serial number that rises; and by what they need
        self._waiting: dict[int, _Waiting] = {}
        self._needed: dict[Name, list[int]] = {}
        self._limits: list[tuple[int, int]] = []
        self._serial = 0
        #: chunk → how many of its rows still wait
        self._live: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def remembered(self) -> int:
        """Return how many rows and names are in memory."""
        return len(self._waiting) + len(self._given)

    def take(self, steps: Steps, until: int = 0) -> Released:
        """Take rows, and let time pass until then, or until the last of them came."""
        out = Released()
        columns = zip(steps.times.tolist(), steps.workflows, steps.needs, steps.gives, strict=True)
        for at, (time, workflow, needs, gives) in enumerate(columns):
            self._pass(time, out)
            self.now = max(self.now, time)
            if workflow is None or needs is None:
                self._release(out, (-1, at), ALONE, workflow, gives)
            elif self._known((workflow, needs)):
                self._release(out, (-1, at), MET, workflow, gives)
            else:
                self._hold(_Waiting(workflow, needs, gives, -1, at, self.now + self.limit_ms))
        self._pass(until, out)
        self._forget()
        self._collect(steps.rows, out)
        return out

    def _known(self, name: Name) -> bool:
        given = self._given.get(name)
        return given is not None and self.now - given < self.remember_ms

    def _hold(self, row: _Waiting) -> None:
        self._serial += 1
        self._waiting[self._serial] = row
        self._needed.setdefault((row.workflow, row.needs), []).append(self._serial)
        heappush(self._limits, (row.limit, self._serial))

    def _pass(self, time: int, out: Released) -> None:
        """Let those come out whose limit comes until then."""
        while self._limits and self._limits[0][0] <= time:
            limit, serial = heappop(self._limits)
            row = self._waiting.pop(serial, None)
            if row is None:
                continue
            self.now = max(self.now, limit)
            waiting = self._needed[row.workflow, row.needs]
            waiting.remove(serial)
            if not waiting:
                del self._needed[row.workflow, row.needs]
            self._release(out, (row.chunk, row.position), MISSING, row.workflow, row.gives)

    def _release(
        self,
        out: Released,
        place: tuple[int, int],
        outcome: str,
        workflow: str | None,
        gives: str | None,
    ) -> None:
        """Let a row come out, and then those that waited for it, and then those for them."""
        ahead = deque([(place, outcome, gives)])
        while ahead:
            place, outcome, gives = ahead.popleft()
            out.places.append(place)
            out.times.append(self.now)
            out.outcomes.append(outcome)
            if place[0] != -1:
                self._live[place[0]] -= 1
            if workflow is None or gives is None:
                continue
            # Put at the end, so that the oldest is always the first.
            self._given.pop((workflow, gives), None)
            self._given[workflow, gives] = self.now
            for serial in self._needed.pop((workflow, gives), ()):
                row = self._waiting.pop(serial)
                ahead.append(((row.chunk, row.position), MET, row.gives))

    def _forget(self) -> None:
        """Forget names that were given longer ago than `remember_ms`."""
        for name, given in list(self._given.items()):
            if self.now - given < self.remember_ms:
                break
            del self._given[name]

    # Rows

    def _collect(self, rows: pa.Table, out: Released) -> None:
        """Find the rows that came out, and keep those that wait now."""
        tables: dict[int, pa.Table] = {-1: rows}
        for chunk, _ in out.places:
            if chunk not in tables:
                tables[chunk] = _read(self.chunks.read(chunk))
        starts, start = {}, 0
        for chunk, table in tables.items():
            starts[chunk] = start
            start += table.num_rows
        if out.places:
            chosen = [starts[chunk] + position for chunk, position in out.places]
            out.rows = pa.concat_tables(tables.values()).take(pa.array(chosen)).combine_chunks()
        out.numbers = self.released + 1 + np.arange(len(out.places))
        self.released += len(out.places)
        for chunk in [chunk for chunk in tables if chunk != -1 and not self._live[chunk]]:
            del self._live[chunk]
            self.chunks.drop(chunk)
        self._keep(rows)

    def _keep(self, rows: pa.Table) -> None:
        """Put the rows of this batch that wait into a chunk."""
        new = [row for row in self._waiting.values() if row.chunk == -1]
        if not new:
            return
        chunk = self.chunks.put(_write(rows.take(pa.array([row.position for row in new]))))
        self._live[chunk] = len(new)
        for position, row in enumerate(new):
            row.chunk, row.position = chunk, position

    # Keeping

    def encode(self) -> list[Any]:
        """Return the state as plain values."""
        given = [[workflow, name, time] for (workflow, name), time in self._given.items()]
        waiting = [row.plain() for row in self._waiting.values()]
        return [self.now, self.released, given, waiting]

    def decode(self, content: list[Any]) -> None:
        """Take up what `encode` returned."""
        self.now, self.released, given, waiting = content
        self._given = {(workflow, name): time for workflow, name, time in given}
        for plain in waiting:
            row = _Waiting(*plain)
            self._hold(row)
            self._live[row.chunk] = self._live.get(row.chunk, 0) + 1


def _write(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()
