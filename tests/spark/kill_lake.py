"""Kills of captures with SIGKILL at each step: every reader has every row once, at every moment.

    python -m tests.spark.kill_lake --kills 200 --seed 1

A capture writes Delta and Iceberg tables in its own process (kill_lake_child.py). While it runs,
and after it was killed, other programs read both kinds of tables. Kills follow one another in the
same lake, without a capture that repairs it in between; some captures are not killed. Small files
are merged, and one lake in two removes old rows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from onibus.client import Client
from onibus.spark.lake import ERRORS, MESSAGES, NUMBERS, OUTCOMES, Lake
from tests.client.server_helpers import ServerThread
from tests.spark import kill_lake_child
from tests.spark.iceberg_helpers import own_catalog
from tests.spark.kill_lake_child import POINTS
from tests.spark.lake_helpers import consume, send
from tests.spark.test_lake_steps import end_lease, is_bad

#: How many captures one lake has.
_CAPTURES_A_LAKE = 25
_DAY_MS = 86_400_000
_CHILDREN = multiprocessing.get_context("forkserver")
_CHILDREN.set_forkserver_preload([kill_lake_child.__name__])


def of_onibus(lake: Lake, table: str) -> pa.Table:
    rows = [lake.read(one)[1] for one in lake.files(table)]
    return pa.concat_tables(rows, promote_options="permissive") if rows else _empty(table)


def of_deltalake(lake: Lake, table: str) -> pa.Table:
    return DeltaTable(lake.address(table)).to_pyarrow_table()


def of_polars(lake: Lake, table: str) -> pa.Table:
    return (
        polars.scan_delta(lake.address(table))
        .select(NUMBERS[table], "partition")
        .collect()
        .to_arrow()
    )


def of_duckdb(lake: Lake, table: str) -> pa.Table:
    rows = DeltaTable(lake.address(table)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("given", rows)
        return connection.sql(f"SELECT {NUMBERS[table]}, partition FROM given").to_arrow_table()


def of_pyiceberg(lake: Lake, table: str) -> pa.Table:
    if not (Path(lake.place) / "iceberg.db").exists():
        return _empty(table)
    with closing(own_catalog(Path(lake.place))) as catalog:
        found = catalog.load_table((lake.entity, table))
        return found.scan(selected_fields=(NUMBERS[table], "partition")).to_arrow()


READERS = (of_onibus, of_deltalake, of_polars, of_duckdb, of_pyiceberg)
_NO_TABLE = (TableNotFoundError, NoSuchTableError, NoSuchNamespaceError)


def _empty(table: str) -> pa.Table:
    return pa.table({NUMBERS[table]: pa.array([], pa.int64())})


def numbers(read: Callable[[Lake, str], pa.Table], lake: Lake, table: str) -> list[int]:
    """The numbers of a table's rows as a program reads them."""
    try:
        return sorted(read(lake, table).column(NUMBERS[table]).to_pylist())
    except _NO_TABLE:
        return []


class Lives:
    """One queue and its lake, through captures that are killed."""

    def __init__(
        self, server: ServerThread, client: Client, place: Path, name: str, keeps: bool
    ) -> None:
        self._server, self._client, self._place, self._name = server, client, place, name
        self.lake = Lake(str(place), name)
        # Many kills in a row keep a reader where it is for longer than the default age of its rows.
        client.create_queue(name, reader_age_ms_max=None)
        self._keeps = keeps
        self.sent = 0
        self._ahead_ms = 0
        #: by reader and table: the first and the last number that it has seen
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        self._wrong: list[BaseException] = []
        #: how often the last capture that ended came to each point
        self.come: Counter[str] = Counter()

    def capture(self, point: str, times: int) -> bool:
        """Send, capture up to a point while programs read, and look; return whether it died."""
        if self._keeps:
            self._ahead_ms += _DAY_MS // 2
            self._client.advance(_DAY_MS // 2)
        send(self._client, self._name, self.sent + 1, self.sent + 5)
        self.sent += 5
        if self._seen:
            # The broker keeps outcomes once the lake has a reader.
            consume(self._client, self._name)
        given: dict[str, Any] = {"most": 2, "table_format": "iceberg"}
        if self._keeps:
            given["keep_ms"] = 2 * _DAY_MS
        ours, theirs = _CHILDREN.Pipe(duplex=False)
        child = _CHILDREN.Process(
            target=kill_lake_child.capture,
            args=(
                self._server.connection_string, self._name, str(self._place), point, times,
                self._ahead_ms, given, theirs,
            ),
        )  # fmt: skip
        child.start()
        theirs.close()
        ended = threading.Event()
        readers = [] if self._keeps else [threading.Thread(target=self._read_on, args=[ended])]
        for one in readers:
            one.start()
        child.join()
        ended.set()
        for one in readers:
            one.join()
        if self._wrong:
            raise self._wrong[0]
        assert child.exitcode in (0, -signal.SIGKILL), child.exitcode
        died = child.exitcode != 0
        child.close()
        for read in READERS:
            self.check(read)
        if died:
            end_lease(self._place)
        else:
            self.come = ours.recv()
            self.check_whole()
        ours.close()
        return died

    def _read_on(self, ended: threading.Event) -> None:
        """Read until the capture has ended."""
        try:
            looked = 0.0
            # Half of the time, so that the capture gets on.
            while not ended.wait(looked):
                begun = time.monotonic()
                for read in (of_deltalake, of_pyiceberg):
                    self.check(read)
                looked = time.monotonic() - begun
        except BaseException as error:
            self._wrong.append(error)

    def check(self, read: Callable[[Lake, str], pa.Table]) -> None:
        """Check that each row from the start to the end exists once, and none disappeared."""
        for table in (MESSAGES, OUTCOMES):
            found = numbers(read, self.lake, table)
            start, end = self._seen.get((read.__name__, table), (1, 0))
            first = found[0] if found else start
            last = found[-1] if found else first - 1
            assert found == list(range(first, last + 1)), (read.__name__, table, found)
            assert end <= last <= self.sent or (self._keeps and not found), (read.__name__, table)
            assert first == start or (self._keeps and first > start), (read.__name__, table, first)
            self._seen[read.__name__, table] = first, max(end, last)
        errors = Counter(numbers(read, self.lake, ERRORS))
        assert all(times == 1 and is_bad(one) for one, times in errors.items()), read.__name__

    def _ended(self, table: str) -> int:
        """Return the last row that existed before the capture."""
        return self.sent if table == MESSAGES else max(self.sent - 5, 0)

    def check_whole(self) -> None:
        """After a capture that ended, all programs read all rows."""
        for table in (MESSAGES, OUTCOMES, ERRORS):
            [found] = {tuple(numbers(read, self.lake, table)) for read in READERS}
            if table != ERRORS:
                assert (found[-1] if found else 0) >= self._ended(table), table
            else:
                first = min(numbers(of_onibus, self.lake, MESSAGES))
                assert {one for one in range(first, self.sent + 1) if is_bad(one)} <= set(found)


def points(draw: random.Random) -> Iterator[str]:
    """Yield points to die at, each as often as others, in random order."""
    while True:
        yield from draw.sample(POINTS, len(POINTS))


def kill(kills: int, seed: int, folder: Path, say: Callable[[str], None]) -> Counter[str]:
    """Kill captures; return how often at which point."""
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    chosen, lakes = points(draw), 0
    with ServerThread() as server, server.client() as client:
        while found.total() < kills:
            lakes += 1
            place = folder / str(lakes)
            lives = Lives(server, client, place, f"q{lakes}", keeps=lakes % 2 == 0)
            lives.capture("", 0)
            for _ in range(_CAPTURES_A_LAKE):
                point = next(chosen)
                # A capture after one that was killed has more to do, and seldom less.
                if lives.capture(point, draw.randint(1, max(lives.come[point], 1))):
                    found[point] += 1
                if found.total() >= kills:
                    break
            lives.capture("", 0)
            client.delete_queue(f"q{lakes}")
            shutil.rmtree(place)
            say(f"{found.total()} kills in {lakes} lakes")
    return found


def main() -> None:
    """Run the long form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = kill(given.kills, given.seed, Path(folder), print)
    for point in POINTS:
        print(f"{found[point]:5} {point}")


if __name__ == "__main__":
    main()
