"""The Declarative Pipelines project of the examples, as `spark-pipelines` runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql.connect.session import SparkSession

from onibus import Message
from onibus.client import Client
from onibus.spark.java import find_java
from tests.client.server_helpers import ServerProcess
from tests.source_tree import ROOT
from tests.spark.clusters import connect_server

Run = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project with another folder for its checkpoints."""
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "declarative", folder)
    for spec in folder.glob("*.yml"):
        text = spec.read_text("utf-8")
        assert "file:///var/lib/onibus/declarative" in text
        spec.write_text(
            text.replace("/var/lib/onibus/declarative", str(tmp_path / "storage")), "utf-8"
        )
    return folder


def pipelines(remote: str, project: Path, connection: str) -> Run:
    """Return a function that runs `spark-pipelines`, and returns what it prints."""

    def run(*words: str, fails: bool = False) -> str:
        # On a busy machine Spark gives up a Python process that starts slowly, and says so.
        for _ in range(12):
            said, code = once(*words)
            if "Python worker failed to connect back" not in said:
                break
        assert bool(code) == fails, said[-5_000:]
        return said

    def once(*words: str) -> tuple[str, int]:
        done = subprocess.run(
            [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"),
             "--remote", remote, *words],
            cwd=project,
            env=os.environ | {
                "ONIBUS_CONNECTION": connection, "JAVA_HOME": str(find_java()),
                "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(Path(pyspark.__file__).parent),
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr, done.returncode

    return run


def rows(spark: SparkSession, query: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in spark.sql(query).collect()}


@pytest.mark.promise("R9")
def test_the_declarative_project_reads_what_is_new_and_keeps_states(
    server: ServerProcess, client: Client, project: Path, tmp_path: Path
) -> None:
    for queue in ("orders", "large"):
        client.create_queue(queue)
    client.send_batch("orders", [Message(body=b"x" * size) for size in (1, 200, 3)])
    settings = {"spark.sql.catalogImplementation": "hive"}
    with connect_server(
        tmp_path, environment={"ONIBUS_CONNECTION": server.connection_string}, **settings
    ) as remote:
        run = pipelines(remote, project, server.connection_string)
        run("run")
        with client.receiver("orders") as receiver:
            one, other, _ = receiver.receive(3)
            receiver.complete(one)
            receiver.dead_letter(other, reason="NoStock")
        client.send_batch("orders", [Message(body=b"y" * 101)])
        run("run")
        spark = SparkSession.builder.remote(remote).getOrCreate()
        assert rows(spark, "SELECT sequence_number, outcome, reason FROM order_states") == {
            (1, "completed", None), (2, "dead-lettered", "NoStock"), (3, None, None),
            (4, None, None),
        }  # fmt: skip
        assert rows(spark, "SELECT count(*), count(DISTINCT sequence_number) FROM orders") == {
            (4, 4)
        }
        assert rows(spark, "SELECT sum(count) FROM orders_by_minute") == {(4,)}
        spark.stop()
        # A Spark of the Python package alone has no tables that AutoCDC can change.
        run("dry-run", "--spec", "auto-cdc.yml")
        said = run("run", "--spec", "auto-cdc.yml", fails=True)
        assert "[AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE]" in said
        assert "last_outcomes` (format: parquet)" in said
    with client.receiver("large", delete=True) as receiver:
        assert [message.body for message in receiver.receive(3)] == [b"x" * 200, b"y" * 101]
