"""A young generation of recorded ids: a dictionary, durable as rows of `recent_ids`.

Where commits are small, so are the rows. Before they are many they are folded: one row takes the
entries of 64, in the batch that deletes them, so that neither sealing a generation nor recovering
it has to touch a row for every id.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from onibus.core.id_runs import Columns, checked, columns_of, with_check
from onibus.core.numbering import ORDINAL_CODE
from onibus.core.pages import IdPages
from onibus.core.records import RECENT_IDS, Row, WriteBatch

_ROWS_FOLDED = 64
#: Rows that have more entries than this, on average, stay as they are.
_FOLDED_ENTRIES_MAX = 16


class Generation:
    """Ids that are not sealed yet, in the order they were recorded."""

    __slots__ = (
        "_loose_from", "_loose_rows", "_written", "hashes", "ordinals", "places", "rows", "times"
    )  # fmt: skip

    def __init__(self) -> None:
        #: The place of an identity in the columns below; the last one, if it has two.
        self.places: dict[bytes, int] = {}
        self.hashes: list[bytes] = []
        self.ordinals = array(ORDINAL_CODE)
        self.times = array("q")
        self._written = 0
        #: The rows that hold its entries, and are deleted when it is sealed.
        self.rows: list[int] = []
        #: Further rows, which may be folded, and the place of the first entry in them.
        self._loose_rows: list[int] = []
        self._loose_from = 0

    def add(self, hashes: Sequence[bytes], ordinals: Sequence[int], now: int) -> None:
        """Take up entries that were recorded at one time."""
        place = len(self.hashes)
        self.places.update(zip(hashes, range(place, place + len(hashes)), strict=True))
        self.hashes.extend(hashes)
        self.ordinals.extend(ordinals)
        self.times.extend(array("q", (now,)) * len(hashes))

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def written(self) -> bool:
        """Whether everything in it has been put into a batch."""
        return self._written == len(self.hashes)

    def columns(self) -> Columns:
        """Return all entries, in the order they were recorded."""
        entries = np.empty((4, len(self.hashes)), dtype=np.uint64)
        entries[:2] = np.frombuffer(b"".join(self.hashes), dtype=np.uint64).reshape(-1, 2).T
        entries[2] = np.frombuffer(self.ordinals, dtype=np.uint64)
        entries[3] = np.frombuffer(self.times, dtype=np.uint64)
        return entries

    def write(self, partition: int, pages: IdPages, out: WriteBatch) -> None:
        """Put the ids recorded since the last write as one row."""
        start = self._written
        self._written = len(self.hashes)
        if len(self._loose_rows) == _ROWS_FOLDED:
            if start - self._loose_from <= _ROWS_FOLDED * _FOLDED_ENTRIES_MAX:
                for row in self._loose_rows:
                    out.delete(RECENT_IDS, (row,))
                start = self._loose_from
            else:
                self.rows += self._loose_rows
            self._loose_rows = []
            self._loose_from = self._written
            self.rows.append(self._put(start, partition, pages, out))
        else:
            self._loose_rows.append(self._put(start, partition, pages, out))

    def delete_rows(self, out: WriteBatch) -> None:
        """Delete its rows: a run has its entries now."""
        for row in self.stored():
            out.delete(RECENT_IDS, (row,))

    def stored(self) -> list[int]:
        """Return the keys of its rows."""
        return [*self.rows, *self._loose_rows]

    def recovered(self) -> None:
        """Take note that all entries came from rows."""
        self._written = self._loose_from = len(self.hashes)

    def _put(self, start: int, partition: int, pages: IdPages, out: WriteBatch) -> int:
        row = pages.new_id()
        out.put(RECENT_IDS, (row, partition, self._content(start)))
        return row

    def _content(self, start: int) -> bytes:
        # Without numpy, whose calls cost more than the few entries of a small commit.
        numbers = memoryview(b"".join(self.hashes[start:])).cast("Q")
        highs, lows = numbers[::2].tobytes(), numbers[1::2].tobytes()
        return with_check(highs, lows, self.ordinals[start:], self.times[start:])


def entries_of_row(row: Row) -> tuple[int, list[tuple[bytes, int, int]]]:
    """Return a row's key and its (hash, ordinal, time), in the order they were recorded."""
    key, _, data = row
    assert isinstance(key, int)
    assert isinstance(data, bytes)
    numbers = checked(data, "recent row", key)[:-1]
    hashes = columns_of(numbers)[:2].T.tobytes()
    count = len(numbers) // 4
    ordinals = numbers[2 * count : 3 * count].tolist()
    times = numbers[3 * count :].tolist()
    singles = [hashes[at : at + 16] for at in range(0, len(hashes), 16)]
    return key, list(zip(singles, ordinals, times, strict=True))
