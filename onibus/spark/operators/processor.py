"""The state of an operator in a stream, in Spark's own store.

Of each group there is a head, a few hundred bytes, and numbered chunks (core/timeline/chunks.py). A
micro-batch reads the head and what it needs, and writes the head and new chunks: a handful of calls
to the store whatever the number of rows. Spark commits them together with the batch, so a batch
that is repeated starts from the state before it, sees the same rows, and gives the same numbers.

A worker that had a group in the last batch still has its state in memory. It may reuse that only if
it is exactly the committed state: each write has its own random token, and the store says which one
counts. Time comes from the rows alone, so no timers are needed, and queries end with
Trigger.AvailableNow.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from onibus.core.timeline import state as timeline_state
from onibus.core.timeline.chunks import Chunks
from onibus.spark.operators.arrivals import Arrival
from onibus.spark.operators.parcels import frames, unseal
from onibus.spark.operators.running import Keeper, Operator, arrow_schema, take
from onibus.spark.tasks import spare_modules

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import TimerValues
    from pyspark.sql.types import StructType

#: About how much state a worker keeps in memory between batches.
_REMEMBERED_BYTES_MAX = 256 << 20
_SECRET_BYTES = 32
_TOKEN_BYTES = 16


class _Remembered:
    """States that a worker had last, by their tokens."""

    def __init__(self) -> None:
        self._keepers: OrderedDict[bytes, tuple[Keeper, int]] = OrderedDict()
        self._bytes = 0

    def put(self, token: bytes, keeper: Keeper) -> None:
        size = sum(1_000 + 100 * state.remembered() for state in keeper.states)
        self._keepers[token] = (keeper, size)
        self._bytes += size
        while self._bytes > _REMEMBERED_BYTES_MAX:
            _, (_, gone) = self._keepers.popitem(last=False)
            self._bytes -= gone

    def take(self, token: bytes) -> Keeper | None:
        keeper, size = self._keepers.pop(token, (None, 0))
        self._bytes -= size
        return keeper


_remembered = _Remembered()

#: Token, secret, and the head of the timeline.
_Head = tuple[bytes, bytes, bytes]


class StatefulGroups(StatefulProcessor):
    """Does the work of an operator for every group of a micro-batch."""

    def __init__(self, work: Operator, rows: StructType, arrival: Arrival, flat: bool) -> None:
        self._work = work
        self._rows = rows
        self._arrival = arrival
        self._flat = flat

    def init(self, handle: StatefulProcessorHandle) -> None:
        spare_modules()
        self._head = handle.getValueState("head", "content binary")
        self._chunks = handle.getMapState("chunks", "number long", "content binary")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Take the parcels of one group. Spark passes arguments by these names."""
        tables, until = [arrow_schema(self._rows).empty_table()], 0
        for frame in rows:
            until = max(until, int(frame["latest"].max()))
            tables += [unseal(parcel) for parcel in frame["parcel"] if parcel is not None]
        secret, keeper = self._open(int(key[0]))
        rows_in = self._arrival.placed(pa.concat_tables(tables))
        out = take(self._work, keeper, rows_in, until)
        self._write(secret, keeper)
        yield from frames(out, self._flat)

    def close(self) -> None:
        """Nothing is left open."""

    def _open(self, group: int) -> tuple[bytes, Keeper]:
        """Return a group's state as it was committed last."""
        kept = self._head.get()
        if kept is None:
            secret = os.urandom(_SECRET_BYTES)
            return secret, self._work.open(group, Chunks(self._read), secret)
        token, secret, head = msgspec.msgpack.decode(kept[0], type=_Head)
        keeper = _remembered.take(token)
        if keeper is None:
            keeper = self._work.open(group, Chunks(self._read), secret)
            timeline_state.decode(head, keeper.states)
        else:
            keeper.states[0].chunks.kept_by(self._read)
        return secret, keeper

    def _write(self, secret: bytes, keeper: Keeper) -> None:
        head = timeline_state.encode(keeper.states)
        put, dropped = keeper.states[0].chunks.changes()
        for number, content in put.items():
            self._chunks.updateValue((number,), (content,))
        for number in dropped:
            self._chunks.removeKey((number,))
        token = os.urandom(_TOKEN_BYTES)
        self._head.update((msgspec.msgpack.encode((token, secret, head)),))
        _remembered.put(token, keeper)

    def _read(self, number: int) -> bytes:
        kept = self._chunks.getValue((number,))
        assert kept is not None
        return bytes(kept[0])
