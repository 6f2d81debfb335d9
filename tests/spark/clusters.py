"""Clusters on this machine, from the package pyspark alone: standalone, and Spark Connect."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from onibus.spark.java import find_java
from tests.source_tree import ROOT

PATIENCE_S = 900
HOME = Path(pyspark.__file__).parent
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


def use_compiled_modules(home: Path) -> None:
    """Let Python workers of Spark import pyspark from where it is installed.

    They find it in an archive first and compile it again in each process: half a second of a core.
    This makes a home of Spark without the archive.
    """
    home.mkdir()
    for part in HOME.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)


@contextmanager
def standalone(scratch: Path, workers: int = 1) -> Iterator[str]:
    """Run a master and workers with two cores in all; give the master's address."""
    master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
    worker = ("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1")
    room = ("--cores", str(2 // workers), "--memory", "1g", "--work-dir", str(scratch / "work"))
    page = ("--webui-port", "0")
    with ExitStack() as running:
        start = running.enter_context
        log = start(started(scratch / "master.log", "spark-class", *master, *page))
        address = told(log, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            name = scratch / f"worker-{number}.log"
            log = start(started(name, "spark-class", *worker, *room, *page, address))
            told(log, r"(Successfully registered) with master")
        yield address


@contextmanager
def connect_server(
    scratch: Path, environment: Mapping[str, str] | None = None, **more: str
) -> Iterator[str]:
    """Run a Spark Connect server with more settings; yield its address."""
    settings = {
        "spark.connect.grpc.binding.port": "0",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        **more,
    }
    confs = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    words = ("--class", CONNECT, "--master", "local[2,3]", *confs)
    with started(scratch / "connect.log", "spark-submit", *words, environment=environment) as log:
        yield f"sc://127.0.0.1:{told(log, r'Connect server started at: .*:([0-9]+)')}"


@contextmanager
def started(
    log: Path, program: str, *words: str, environment: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Run a program of Spark, and nothing of it later on."""
    given = os.environ | {
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": os.environ.get("SPARK_HOME", str(HOME)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(HOME / "bin" / program), *words],
            # What a server of Spark Connect runs imports us from here.
            env=given | {"PYTHONPATH": str(ROOT)} | dict(environment or {}),
            cwd=log.parent,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def told(log: Path, pattern: str) -> str:
    """Wait until a program tells something; return it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text("utf-8"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"it does not say {pattern}: {log.read_text('utf-8')[-2000:]}")
