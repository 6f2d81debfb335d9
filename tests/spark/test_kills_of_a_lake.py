"""The short form of kill_lake.py, and that it finds a repeated or a lost row."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from onibus.spark.lake import MESSAGES
from tests.client.server_helpers import ServerThread
from tests.spark.iceberg_helpers import own_catalog
from tests.spark.kill_lake import Lives, kill, of_deltalake, of_pyiceberg


@pytest.mark.promise("R9")
def test_programs_read_each_row_once_whenever_a_capture_is_killed(tmp_path: Path) -> None:
    assert kill(5, 1, tmp_path, print).total() == 5


def test_a_row_that_is_there_twice_or_lost_is_found(tmp_path: Path) -> None:
    place = tmp_path / "lake"
    with ServerThread() as server, server.client() as client:
        lives = Lives(server, client, place, "orders", keeps=False)
        lives.capture("", 0)
        [file, *_] = (place / "orders" / MESSAGES).glob("*.parquet")
        shutil.copy(file, tmp_path / "again.parquet")
        with closing(own_catalog(place)) as catalog:
            table = catalog.load_table(("orders", MESSAGES))
            table.add_files([f"file://{tmp_path}/again.parquet"])
            with pytest.raises(AssertionError, match="of_pyiceberg"):
                lives.check(of_pyiceberg)
            table.delete("sequence_number > 0")
        with pytest.raises(AssertionError, match="of_pyiceberg"):
            lives.check(of_pyiceberg)
        shutil.rmtree(place / "orders" / MESSAGES)
        with pytest.raises(AssertionError, match="of_deltalake"):
            lives.check(of_deltalake)
