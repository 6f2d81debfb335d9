"""`onibus up` as a user runs it: the lake has each message, from the first one on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onibus.client import Client
from onibus.spark.lake import Lake
from tests.server.processes import environment
from tests.spark.lake_helpers import consume, send

#: Spark is up within this time, however busy the machine is.
PATIENCE_S = 600


@contextmanager
def up(place: Path, **variables: str) -> Iterator[dict[str, Any]]:
    """Run a server with its pipeline; give what it said when it was ready."""
    words = ["up", "--data", "data", "--lake", "lake", "--http-port", "0", "--json"]
    with (place / "stderr").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "onibus", *words, "--interval", "1 second"],
            cwd=place,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def audit(place: Path, entity: str) -> dict[str, Any]:
    """Run an audit, which needs no Spark for a small lake."""
    words = ["pipeline", "audit", entity, "--lake", "lake", "--connect", "@data/connection-string"]
    done = subprocess.run(
        [sys.executable, "-m", "onibus", *words, "--json"],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Spark" not in done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.promise("R9")
def test_messages_completed_before_spark_has_started_are_in_the_lake(tmp_path: Path) -> None:
    (tmp_path / "onibus.toml").write_text('[lake]\nkeep_ms = "P30D"')
    with up(tmp_path, ONIBUS_CONFIG="onibus.toml") as ready:
        with Client.connect((tmp_path / "data" / "connection-string").read_text()) as client:
            for queue in ("first", "later"):
                client.create_queue(queue)
                send(client, queue, 1, 2)
                consume(client, queue)
        assert ready["ready"]
        deadline = time.monotonic() + PATIENCE_S
        for queue in ("first", "later"):
            while not (verdict := audit(tmp_path, queue))["passed"]:
                assert time.monotonic() < deadline, verdict
                time.sleep(1)
            assert verdict["covered"] == {"0": [1, 2]}
            assert (verdict["messages"], verdict["outcomes"]) == (2, 2)
            lake = Lake(str(tmp_path / "lake"), queue)
            assert lake.manifest().keep_ms == 30 * 86_400_000
    assert "Traceback" not in (tmp_path / "stderr").read_text()


def test_a_server_without_spark_says_so_and_serves(tmp_path: Path) -> None:
    # An environment without Spark and Arrow: the imports fail as if neither were installed.
    hide = "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hide, "utf-8")
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    with up(tmp_path, PYTHONPATH=path) as ready:
        with Client.connect((tmp_path / "data" / "connection-string").read_text()) as client:
            client.create_queue("q")
            assert client.readers("q") == [], "nothing is kept for a lake that no program writes"
        assert ready["ready"]
    said = (tmp_path / "stderr").read_text()
    assert "without a pipeline" in said
    assert "pip install 'onibus[spark]'" in said
