"""A capture that is cut off before any of its steps: readers see each row once at every moment.

A step is one change of the lake's files, or a move of the lake's reader. Each is cut off once, in a
separate lake of a separate queue; then readers look, and the capture is run again.

The long form cuts off every step, not every sixth: ONIBUS_STEPS=1 pytest
tests/spark/test_lake_steps.py
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from onibus import Message
from onibus.client import Client
from onibus.spark import delta_log
from onibus.spark.lake import ERRORS, MESSAGES, NUMBERS, OUTCOMES, TABLES, Lake
from onibus.spark.lake_files import LakeFiles
from onibus.spark.lake_manifest import TYPED
from tests.client.server_helpers import ServerThread
from tests.server.processes import served
from tests.spark.lake_helpers import Captures, Crash, consume, make_old, send
from tests.upgrades.contents import STORES
from tests.upgrades.earlier import CONVERTED, unpack

#: Each step of this distance is cut off.
EACH = int(os.environ.get("ONIBUS_STEPS", "6"))
#: The calls that change a lake or the broker.
_CHANGES = ("put", "put_new", "give_name", "rename", "delete", "delete_folder")


class Steps:
    """Counts steps and ends the process before one; a dead process makes no further ones."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.names: list[str] = []
        self._last: int | None = None
        for name in _CHANGES:
            self._wrap(LakeFiles, name)
        self._wrap(Client, "move_reader")

    def _wrap(self, owner: type, name: str) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def step(*given: Any, **more: Any) -> Any:
            if name.startswith("put") and str(given[1]).startswith("_lease"):
                # A thread renews it, at any time.
                return call(*given, **more)
            if self._last is not None and len(self.names) >= self._last:
                raise Crash
            is_file = name == "give_name" or str(given[1]).endswith(".parquet")
            self.names.append("file" if is_file else name)
            return call(*given, **more)

        self._patch.setattr(owner, name, step)

    def allow(self, steps: int | None) -> None:
        """Begin to count; crash after that number of steps."""
        self.names, self._last = [], steps


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(delta_log, "CHECKPOINT_EACH", 4)
    return Steps(monkeypatch)


def is_bad(number: int) -> bool:
    return number % 5 == 0


def ours(lake: Lake, table: str) -> list[int]:
    """The numbers that Onibus reads."""
    return [number for one in lake.files(table) for number in _numbers(lake.read(one)[1], table)]


def theirs(lake: Lake, table: str) -> list[int]:
    """The numbers that another program reads."""
    try:
        found = DeltaTable(lake.address(table))
    except TableNotFoundError:
        return []
    return _numbers(found.to_pyarrow_table(), table)


def _numbers(rows: pa.Table, table: str) -> list[int]:
    """Numbers that no two rows of a table share: outcomes are counted in each partition."""
    numbers = rows.column(NUMBERS[table]).to_pylist()
    if table != OUTCOMES:
        return numbers
    partitions = rows.column("partition").to_pylist()
    return [(at << 48) + number for at, number in zip(partitions, numbers, strict=True)]


def check(lake: Lake, known: int, most: int) -> None:
    """Each row is there once: the known ones, and others up to the end of the log."""
    for read in (ours, theirs):
        messages, errors = read(lake, MESSAGES), read(lake, ERRORS)
        assert not [one for one, times in Counter(errors).items() if times > 1], read
        end = max(messages, default=0)
        assert known <= end <= most
        assert sorted(messages) == list(range(1, end + 1))
        assert {one for one in range(1, end + 1) if is_bad(one)} <= set(errors)
        assert all(is_bad(one) for one in errors)


def end_lease(place: Path) -> None:
    """Let the lease of a killed writer expire."""
    for folder in place.glob("*/_lease"):
        shutil.rmtree(folder)


@pytest.mark.promise("R9")
def test_a_capture_that_is_cut_off_before_any_step(
    own_server: ServerThread, steps: Steps, tmp_path: Path
) -> None:
    with own_server.client() as client:
        names = capture_cut_off(own_server, client, steps, tmp_path, None)
        assert {"put", "put_new", "delete", "move_reader"} <= set(names)
        for last in range(0, len(names), EACH):
            capture_cut_off(own_server, client, steps, tmp_path, last)


def capture_cut_off(
    server: ServerThread, client: Client, steps: Steps, folder: Path, last: int | None
) -> list[str]:
    """Capture, cut a second capture off, look, and capture again; return the steps."""
    entity = f"q-{last}".lower()
    client.create_queue(entity)
    captures, place = Captures(server.connection_string, entity), folder / entity
    lake = captures.lake(place)
    steps.allow(None)
    send(client, entity, 1, 7)
    captures.run(place, most=1, bad=is_bad)
    # Something for the vacuum to remove.
    send(client, entity, 8, 8)
    with pytest.raises(Crash):
        captures.run(place, crash="written", bad=is_bad)
    make_old(place)
    send(client, entity, 9, 12)
    consume(client, entity)
    steps.allow(last)
    try:
        captures.run(place, most=3, bad=is_bad)
    except Crash:
        assert last is not None
    names = steps.names
    steps.allow(None)
    check(lake, 7, 12)
    end_lease(place)
    captures.run(place, bad=is_bad)
    check(lake, 12, 12)
    assert sorted(theirs(lake, MESSAGES)) == list(range(1, 13))
    assert sorted(theirs(lake, ERRORS)) == [5, 10]
    assert sorted(theirs(lake, OUTCOMES)) == list(range(1, 13))
    client.delete_queue(entity)
    shutil.rmtree(place)
    return names


@pytest.mark.promise("R9")
@pytest.mark.parametrize("version", CONVERTED)
def test_a_conversion_that_is_cut_off_before_any_step(
    version: str, steps: Steps, tmp_path: Path
) -> None:
    data = unpack(version, "data", tmp_path)
    config = tmp_path / "onibus.toml"
    config.write_text("[stores]\n" + "".join(f"{name} = {str(data)!r}\n" for name in STORES))
    with served("--data", data, "--config", config):
        captures = Captures((data / "connection-string").read_text().strip(), "orders")
        with Client.connect(captures.options.server) as client:
            client.send_batch("orders", [Message(message_id=f"new-{at}") for at in range(3)])
        names = convert_cut_off(captures, version, steps, tmp_path / "all", None)
        # The files of a table are alike: the first, one in the middle and the last.
        alike = [at for at, name in enumerate(names) if name == "file"]
        assert len(alike) > 10
        left_out = set(alike[1 : len(alike) // 2]) | set(alike[len(alike) // 2 + 1 : -1])
        for last in sorted(set(range(len(names))) - left_out)[::EACH]:
            convert_cut_off(captures, version, steps, tmp_path / str(last), last)


def convert_cut_off(
    captures: Captures, version: str, steps: Steps, place: Path, last: int | None
) -> list[str]:
    """Convert a lake of an earlier version, cut it off, look, and convert it again."""
    lake_place = unpack(version, "lake", place)
    lake = captures.lake(lake_place)
    before = {table: sorted(ours(lake, table)) for table in TABLES}
    assert len(before[MESSAGES]) == 60
    steps.allow(last)
    try:
        captures.run(lake_place, new_identity=True)
    except Crash:
        assert last is not None
    names = steps.names
    steps.allow(None)
    for table in TABLES:
        found = ours(lake, table)
        assert len(found) == len(set(found))
        assert set(before[table]) <= set(found)
    end_lease(lake_place)
    captures.run(lake_place, new_identity=True)
    stored = lake.stored_manifest()
    assert stored is not None
    assert stored.layout == TYPED
    for table in (MESSAGES, OUTCOMES):
        assert sorted(theirs(lake, table)) == sorted(ours(lake, table))
    assert len(theirs(lake, MESSAGES)) == 63
    # The earlier names go when they are old.
    make_old(lake_place)
    captures.run(lake_place)
    assert not list((lake_place / "orders").rglob("date=*/**/*.parquet"))
    assert len(ours(lake, MESSAGES)) == 63
    shutil.rmtree(place)
    return names
