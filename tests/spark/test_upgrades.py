"""A lake that an earlier version made is continued, and its audit passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from onibus import Message
from onibus.client import Client
from onibus.spark.jobs.audit import audit
from onibus.spark.lake import MESSAGES, Lake
from tests.server.processes import environment, served
from tests.spark.lake_helpers import Captures
from tests.upgrades.contents import STORES
from tests.upgrades.earlier import LAKES, unpack


def pipeline(*arguments: str) -> dict[str, Any]:
    """Run a job of the command line; return what it printed."""
    command = [sys.executable, "-m", "onibus", "pipeline", *arguments, "--json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


@pytest.mark.promise("R9")
@pytest.mark.parametrize("version", ["0.1.0"])
@pytest.mark.parametrize("owner", [True, False])
def test_a_lake_gets_its_own_readers_and_the_shared_one_keeps_nothing(
    version: str, tmp_path: Path, owner: bool
) -> None:
    data, lake = unpack(version, "data", tmp_path), unpack(version, "lake", tmp_path)
    config = tmp_path / "onibus.toml"
    config.write_text("[stores]\n" + "".join(f"{name} = {str(data)!r}\n" for name in STORES))
    with served("--data", data, "--config", config):
        connection = (data / "connection-string").read_text().strip()
        captures = Captures(connection, "orders")
        with Client.connect(connection) as client:
            client.send_batch("orders", [Message(message_id=f"new-{at}") for at in range(3)])
            assert captures.lake(lake).identity() is None
            if not owner:
                # Another lake of that version has moved the shared reader since.
                latest, at = client.log_positions("orders").latest, client.readers("orders")[0]
                assert at.name == "capture"
                positions = [number or 0 for number in latest]
                client.move_reader("orders", "capture", positions, at.incarnation)
            captures.run(lake)
            readers = {one.name: one for one in client.readers("orders")}
            identity = captures.lake(lake).identity()
            assert identity is not None
            assert readers[f"lake-{identity}"].lag == (0,) * 16
            if owner:
                assert "capture" not in readers
            else:
                assert readers["capture"].idle_ms is not None
            assert "capture-outcomes" not in readers
        assert not (lake / "orders" / "_checkpoint").exists()
        source = {"connection": connection, "entity": "orders"}
        assert audit(lambda: None, source, str(lake)).passed  # type: ignore[arg-type, return-value]
    assert len(captures.numbers(lake)) == 63


@pytest.mark.parametrize("version", LAKES)
def test_capture_goes_on(version: str, tmp_path: Path) -> None:
    data, lake = unpack(version, "data", tmp_path), unpack(version, "lake", tmp_path)
    config = tmp_path / "onibus.toml"
    config.write_text("[stores]\n" + "".join(f"{name} = {str(data)!r}\n" for name in STORES))
    with served("--data", data, "--config", config) as server:
        connection = (data / "connection-string").read_text().strip()
        with Client.connect(connection) as client:
            client.send_batch("orders", [Message(message_id=f"new-{at}") for at in range(3)])
        lake_of = ("--lake", str(lake), "--connect", connection)
        pipeline("capture", "orders", *lake_of)
        assert pipeline("audit", "orders", *lake_of)["passed"]
        assert server.process.poll() is None
    rows = pq.read_table(
        Lake(str(lake), "orders").paths(MESSAGES), columns=["message_id"], partitioning=None
    )
    ids = rows.column("message_id").to_pylist()
    assert sorted(ids) == sorted([f"o-{at}" for at in range(60)] + [f"new-{at}" for at in range(3)])
