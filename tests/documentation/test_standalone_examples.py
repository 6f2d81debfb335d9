"""The standalone examples run against a server, as their pages say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onibus.client import Client
from onibus.core.message import Message
from tests.server.processes import PATIENCE_S, Served, served
from tests.source_tree import ROOT

EXAMPLES = ROOT / "examples"
ATTEMPTS = 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """Run a server with the configuration of `make run`, on free ports."""
    config = ROOT / "examples/onibus.toml"
    with served("--data", tmp_path / "data", "--config", config, "--http-port", "0") as one:
        yield one


@contextmanager
def running(folder: str, command: list[str], **variables: str) -> Iterator[Iterator[str]]:
    """Run a command in an example's folder; give its lines."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=EXAMPLES / folder,
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield iter(process.stdout)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


def lines_until(lines: Iterator[str], *wanted: str) -> list[str]:
    """Read lines until all that are wanted were printed."""
    seen: list[str] = []
    for line in lines:
        seen.append(line.strip())
        if all(any(one in text for text in seen) for one in wanted):
            return seen
    raise AssertionError("\n".join(seen))


def test_the_service_bus_worker(server: Served) -> None:
    connection = {"SERVICEBUS_CONNECTION_STRING": server.service_bus}
    with running("service-bus", ["service_bus_worker.py"], **connection) as lines:
        lines_until(lines, "shipped 3 apples", "shipped 5 pears", "dead-lettered 0 plums")
        with Client.connect(server.ready["development"]) as client:
            client.send("orders", Message(body=b"7 figs", format=""))
            lines_until(lines, "shipped 7 figs")
            [dead] = client.peek("orders", dead_letters=True)
    assert dead.dead_letter_reason == "BadOrder"


def test_the_sqs_worker(server: Served) -> None:
    with running("sqs", ["sqs_worker.py"], AWS_ENDPOINT_URL_SQS=server.ready["sqs"]) as lines:
        lines_until(lines, "done job 1", "done job 2", "done job 3")
        with Client.connect(server.ready["development"]) as client:
            client.send("jobs", Message(body=b"job 4"))
            lines_until(lines, "done job 4")


def test_the_celery_app(server: Served) -> None:
    options = ["--pool", "solo", "--without-mingle", "--without-gossip"]
    endpoint = {"AWS_ENDPOINT_URL_SQS": server.ready["sqs"]}
    command = ["-m", "celery", "-A", "celery_app", "worker", *options]
    assert " ".join(command[1:]) in (EXAMPLES / "celery_app/README.md").read_text("utf-8")
    with running("celery_app", command, **endpoint) as lines:
        with running("celery_app", ["celery_app.py"], **endpoint) as sent:
            assert list(sent) == []
        lines_until(lines, "shipped 3 apples")


@pytest.mark.slow
def test_the_spark_job(server: Served, tmp_path: Path) -> None:
    url = {"ONIBUS_URL": server.http, "SPARK_LOCAL_IP": "127.0.0.1"}

    def run() -> str:
        """Run the job until it succeeds; return its output. A job that fails can be run again."""
        for _ in range(ATTEMPTS):
            done = subprocess.run(
                [sys.executable, str(EXAMPLES / "spark/spark_job.py")],
                cwd=tmp_path,
                env={**os.environ, **url},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return done.stdout
            # Spark gives its workers ten seconds to start, which a busy machine may need.
            assert "Python worker failed to connect back" in done.stderr, done.stderr
        raise AssertionError(done.stderr)

    with Client.connect(server.ready["development"]) as client:
        client.send_batch("orders", [Message(body=b"3 apples"), Message(body=b"5 pears")])
        assert "2 messages in orders-parquet" in run()
        client.send("orders", Message(body=b"7 figs"))
        shown = run()
    assert "3 messages in orders-parquet" in shown
    assert "7 figs" in shown
