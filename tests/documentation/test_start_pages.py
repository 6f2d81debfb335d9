"""The pages of docs/start run as they are printed: server, program, commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.programs import lines_until, running
from tests.server.processes import Served
from tests.source_tree import ROOT, text_of


def steps(page: str) -> list[list[str]]:
    """Return the commands of a page, in order."""
    blocks = re.sub(r"^```.*?^```$", "", text_of(f"docs/start/{page}.md"), flags=re.M | re.S)
    return [shlex.split(line) for line in re.findall(r"^    (\S.*)$", blocks, re.M)]


def run_commands(page: str, server: Served, folder: Path) -> str:
    """Run the `onibus` commands of a page; return their output."""
    variables = {**os.environ, "ONIBUS_CONNECTION": server.ready["development"]}
    variables |= {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    shown = ""
    for program, *words in steps(page):
        if program != "onibus":
            continue
        more = ["--looks", "1"] if words == ["top"] else []
        command = [sys.executable, "-m", "onibus", *words, *more]
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        shown += done.stdout
    return shown


@pytest.mark.parametrize("page", ["service-bus", "sqs", "spark"])
def test_a_page_starts_with_make_run(page: str) -> None:
    first, *rest = steps(page)
    assert first == ["make", "run"]
    assert {words[0] for words in rest} <= {"onibus", "pip", "python", "source"}


def test_start_with_service_bus(server: Served, tmp_path: Path) -> None:
    assert ["python", "service_bus_worker.py"] in steps("service-bus")
    connection = {"SERVICEBUS_CONNECTION_STRING": server.service_bus}
    with running("service-bus", ["service_bus_worker.py"], **connection) as lines:
        lines_until(lines, "shipped 3 apples", "shipped 5 pears", "dead-lettered 0 plums")
        shown = run_commands("service-bus", server, tmp_path)
        lines_until(lines, "shipped 7 figs")
    assert "BadOrder" in shown


def test_start_with_sqs(server: Served, tmp_path: Path) -> None:
    assert ["python", "sqs_worker.py"] in steps("sqs")
    with running("sqs", ["sqs_worker.py"], AWS_ENDPOINT_URL_SQS=server.ready["sqs"]) as lines:
        lines_until(lines, "done job 1", "done job 2", "done job 3")
        shown = run_commands("sqs", server, tmp_path)
        lines_until(lines, "done job 4")
    assert "jobs" in shown


@pytest.mark.slow
def test_start_with_spark(server: Served, tmp_path: Path) -> None:
    """The job itself is a test of the examples; these are the commands around it."""
    assert ["python", "spark_job.py"] in steps("spark")
    run_commands("spark", server, tmp_path)
    assert (tmp_path / "report.html").is_file()
