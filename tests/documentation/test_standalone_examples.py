"""Examples that need a server run against one; the start pages run the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onibus.client import Client
from onibus.core.message import Message
from tests.documentation.programs import EXAMPLES, lines_until, output_of, running
from tests.server.processes import Served

ATTEMPTS = 5


def test_the_client(server: Served) -> None:
    connection = server.ready["development"]
    assert "b'3 apples'" in output_of("how-to", ["client.py", connection])


def test_the_celery_app(server: Served) -> None:
    options = ["--pool", "solo", "--without-mingle", "--without-gossip"]
    endpoint = {"AWS_ENDPOINT_URL_SQS": server.ready["sqs"]}
    command = ["-m", "celery", "-A", "celery_app", "worker", *options]
    assert " ".join(command[1:]) in (EXAMPLES / "celery_app/README.md").read_text("utf-8")
    with running("celery_app", command, **endpoint) as lines:
        assert output_of("celery_app", ["celery_app.py"], **endpoint) == ""
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
