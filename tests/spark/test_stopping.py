"""A job that is stopped while Spark's Java process starts leaves no process behind.

Java is a script here that never finishes its start: a process that stays would stay for good.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from onibus.client import Client
from tests.client.server_helpers import ServerProcess
from tests.server.processes import environment, wait_for
from tests.spark.lake_helpers import send

#: Tells its version; then either the launcher or the program that it launches does not end.
JAVA = r"""#!/bin/sh
case "$*" in
*-version*) echo 'openjdk version "17.0.15"' >&2 ;;
*launcher.Main*)
    if [ -n "$SLOW_LAUNCHER" ]; then exec sleep 601; fi
    printf '\0\nsleep\0'; printf '600\0' ;;
esac
"""
JOBS = {
    "capture": ("capture", "QUEUE", "--continuous"),
    "capture --all": ("capture", "--all", "--continuous"),
    "one capture": ("capture", "QUEUE"),
    "report": ("report", "QUEUE"),
    "ingest": ("ingest", "rows.json", "QUEUE", "--format", "json"),
    "replay": ("replay", "QUEUE", "--name", "n"),
    "process": ("process", "rows.json", "--out", "out", "--format", "json"),
    "deduplicate": ("deduplicate", "rows.json", "--out", "out", "--format", "json"),
}


class Job:
    """A command, by default with the slow Java, and all the processes that it starts."""

    def __init__(
        self, place: Path, words: tuple[str, ...], launcher: str = "", java: str = JAVA
    ) -> None:
        self._mark = uuid4().hex
        variables = {
            "XDG_CACHE_HOME": str(place / "cache"),
            "SLOW_LAUNCHER": launcher,
            "MARK": self._mark,
        }
        if java:
            program = place / "jdk" / "bin" / "java"
            program.parent.mkdir(parents=True)
            program.write_text(java, "utf-8")
            program.chmod(0o755)
            variables["JAVA_HOME"] = str(place / "jdk")
        self._said = place / "said"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "onibus", *words],
                cwd=place,
                env=environment(**variables),
                stdout=said,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return self._said.read_text("utf-8")

    def left(self, words: str = "") -> list[int]:
        """Return the processes that still run, and have these words in their command."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"MARK={self._mark}".encode() not in (entry / "environ").read_bytes():
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if command and words in command:
                found.append(int(entry.name))
        return found

    def is_starting_java(self) -> bool:
        assert self.process.poll() is None, self.said
        return bool(self.left("sleep 60"))

    def end(self) -> None:
        for one in self.left():
            os.kill(one, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.end()


def stopped(job: Job, how: int) -> int:
    """Stop a job while Java starts; return how it ended."""
    wait_for(job.is_starting_java)
    job.process.send_signal(how)
    code = job.process.wait(60)
    deadline = time.monotonic() + 60
    while job.left() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert job.left() == []
    assert "Traceback" not in job.said, job.said
    return code


@pytest.mark.parametrize(
    ("name", "how", "launcher", "code"),
    [
        *((name, signal.SIGTERM, "", 143) for name in JOBS if not name.startswith("capture")),
        ("capture", signal.SIGTERM, "", 0),
        ("capture", signal.SIGTERM, "yes", 0),
        ("capture", signal.SIGINT, "", 0),
        ("capture", signal.SIGKILL, "", -signal.SIGKILL),
        ("capture --all", signal.SIGTERM, "", 0),
        ("one capture", signal.SIGINT, "yes", 130),
        ("one capture", signal.SIGKILL, "", -signal.SIGKILL),
    ],
)
def test_a_job_that_is_stopped_while_java_starts_leaves_no_process(
    server: ServerProcess,
    client: Client,
    entity: str,
    tmp_path: Path,
    jobs: list[Job],
    name: str,
    how: int,
    launcher: str,
    code: int,
) -> None:
    client.create_queue(entity)
    send(client, entity, 1, 2)
    words = tuple(entity if word == "QUEUE" else word for word in JOBS[name])
    if name not in ("process", "deduplicate"):
        words += ("--connect", server.connection_string)
    jobs.append(Job(tmp_path, ("pipeline", *words), launcher))
    assert stopped(jobs[0], how) == (0 if name == "replay" else code)
    if how != signal.SIGKILL:
        assert list(tmp_path.glob("lake/*/_lease/*")) == [], "the next capture need not wait"
    client.delete_queue(entity)


@pytest.mark.parametrize(
    ("how", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
)
def test_a_job_that_is_stopped_while_spark_works_says_nothing_and_leaves_nothing(
    tmp_path: Path, jobs: list[Job], how: int, code: int
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with Client.connect(server.connection_string) as client:
            client.create_queue("q")
            send(client, "q", 1, 2)
        words = ("pipeline", "capture", "q", "--connect", server.connection_string)
        jobs.append(Job(tmp_path, words, java=""))
        wait_for(lambda: "starting Spark" in jobs[0].said)
        # Spark's processes wait for the server from now on.
        server.pause()
        wait_for(lambda: bool(jobs[0].left("pyspark.daemon")))
        jobs[0].process.send_signal(how)
        assert jobs[0].process.wait(60) == code, jobs[0].said
        wait_for(lambda: jobs[0].left() == [])
    lines = jobs[0].said.splitlines()
    # Java names the options that tests give it.
    assert [one for one in lines if "JDK_JAVA_OPTIONS" not in one] == ["starting Spark …"]
    assert list(tmp_path.glob("lake/*/_lease/*")) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_with_a_pipeline_leaves_no_process(
    tmp_path: Path, jobs: list[Job], how: int
) -> None:
    words = ("up", "--data", "data", "--http-port", "0", "--interval", "1 second")
    jobs.append(Job(tmp_path, words))
    file = tmp_path / "data" / "connection-string"
    wait_for(file.exists)
    wait_for(lambda: "the pipeline captures" in jobs[0].said)
    with Client.connect(file.read_text()) as client:
        client.create_queue("q")
        send(client, "q", 1, 2)
    assert stopped(jobs[0], how) == (0 if how == signal.SIGTERM else -how)
