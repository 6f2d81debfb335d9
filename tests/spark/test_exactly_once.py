"""Every row arrives once, whoever is killed: tasks, drivers, executors, the server (R6).

The queue detects no duplicates: what is proved is staging and publishing alone.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onibus.client import Client
from tests.client.server_helpers import ServerProcess
from tests.source_tree import ROOT
from tests.spark.faults import (
    AFTER,
    BEFORE,
    DURING,
    PUBLISH,
    STAGE,
    Fault,
    FaultyProxy,
    children_like,
    gapless,
)
from tests.spark.writing_helpers import (
    content,
    expected,
    log_of,
    put_rows,
    rows_stream,
    write_stream,
)

ROWS_A_FILE = 100
#: A driver with its Spark is up and done within this time, however busy the machine is.
PATIENCE_S = 600

#: What must be shown, whatever the random ones do.
NAMED = [
    Fault(STAGE, AFTER, "client"),  # a task after it has staged
    Fault(PUBLISH, AFTER, "client"),  # the driver's committer after it has published
    Fault(PUBLISH, BEFORE, "server"),  # the server between stage and publish
    Fault(PUBLISH, AFTER, "server"),  # the server before it could tell that it has published
    Fault(PUBLISH, BEFORE, "client"),  # the committer before it has published
]


def random_faults(seed: int, count: int) -> list[Fault]:
    """Return faults at random points; most are of tasks and of the server."""
    draw = random.Random(seed)
    faults = []
    for _ in range(count):
        request = draw.choice((STAGE, STAGE, STAGE, PUBLISH))
        moment = draw.choice((BEFORE, DURING, AFTER))
        victim = draw.choice(("client", "server"))
        faults.append(Fault(request, moment, victim, draw.randrange(2)))
    return faults


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that may be killed."""
    with ServerProcess(tmp_path / "data") as server:
        yield server


def check(server: ServerProcess, entity: str, count: int) -> None:
    """Everything is there, once, with numbers without a gap, and nothing is left over."""
    with Client.connect(server.connection_string) as client:
        rows = log_of(client, entity, "sequence_number", "message_id", "body")
        assert content([row[1:] for row in rows]) == expected(count)
        assert gapless(client, entity, [row[0] for row in rows])
        assert client.staged(entity) == []
        assert client.queue(entity).duplicates_dropped == 0


@pytest.mark.promise("R6", "S3")
@pytest.mark.parametrize("seed", [5])
def test_rows_arrive_once_whoever_is_killed(
    spark: SparkSession, own_server: ServerProcess, entity: str, tmp_path: Path, seed: int
) -> None:
    with Client.connect(own_server.connection_string) as client:
        client.create_queue(entity, enable_partitioning=True)
    faults = NAMED + random_faults(seed, 15)
    folder, files = tmp_path / "in", 0
    with FaultyProxy(own_server, faults) as proxy:
        for _ in range(60):
            for _ in range(4):
                put_rows(folder, f"{files}", files * ROWS_A_FILE, ROWS_A_FILE)
                files += 1
            rows = rows_stream(spark, folder).repartition(2)
            try:
                write_stream(
                    rows, proxy.connection_string, entity, tmp_path / "checkpoint", retrySeconds=60
                )
            except PySparkException:
                # The committer was killed, or a task too often: the next start goes on.
                continue
            if not proxy.left:
                break
        assert len(proxy.kills) == len(faults), f"seed {seed}: {proxy.kills}"
    check(own_server, entity, files * ROWS_A_FILE)


@pytest.mark.promise("R6")
def test_an_executor_and_a_driver_of_a_cluster_are_killed(
    own_server: ServerProcess, entity: str, tmp_path: Path
) -> None:
    with Client.connect(own_server.connection_string) as client:
        client.create_queue(entity, enable_partitioning=True)
    folder = tmp_path / "in"
    for number in range(4):
        put_rows(folder, f"{number}", number * ROWS_A_FILE, ROWS_A_FILE)
    faults = [Fault(STAGE, AFTER, "executor", 2), Fault(PUBLISH, AFTER, "driver", 1)]
    driver: subprocess.Popen[bytes]

    def kill_executor() -> None:
        executors = children_like(driver.pid, "CoarseGrainedExecutorBackend")
        os.kill(executors[0], signal.SIGKILL)

    def kill_driver() -> None:
        os.killpg(driver.pid, signal.SIGKILL)

    with FaultyProxy(own_server, faults, executor=kill_executor, driver=kill_driver) as proxy:
        driver = start_driver(proxy.connection_string, entity, tmp_path)
        try:
            assert driver.wait(PATIENCE_S) == -signal.SIGKILL
            driver = start_driver(proxy.connection_string, entity, tmp_path)
            assert driver.wait(PATIENCE_S) == 0
        finally:
            end(driver)
        assert proxy.left == 0
    check(own_server, entity, 4 * ROWS_A_FILE)


def start_driver(connection: str, entity: str, place: Path) -> subprocess.Popen[bytes]:
    """Start a driver with two executors of its own, in a process group of its own."""
    scratch = place / "scratch"
    scratch.mkdir(exist_ok=True)
    given = [connection, entity, *(str(place / name) for name in ("in", "checkpoint", "scratch"))]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.stream_driver", "local-cluster[2,1,1024]", *given],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(driver: subprocess.Popen[bytes]) -> None:
    """Leave nothing of a driver behind."""
    try:
        os.killpg(driver.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        driver.wait()
