"""The first steps of somebody new: what README tells to type, and what a server suggests."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onibus.cli import serve
from tests.cli.conftest import Onibus
from tests.server.processes import OWN_KEY_ONLY, PATIENCE_S, command, environment
from tests.source_tree import ROOT, text_of


def test_the_commands_of_the_readme(onibus: Onibus) -> None:
    steps = text_of("README.md").partition("source .venv/bin/activate")[2].partition("\n\n")[0]
    shown = {}
    for line in steps.splitlines()[1:]:
        program, *words = shlex.split(line, comments=True)
        assert program == "onibus"
        more = ["--looks", "1"] if words == ["top"] else []
        shown[line.partition("#")[0].strip()] = onibus.shown(*words, *more)
    told = "\n".join(shown.values())
    assert "dropped: duplicate of sequence number 1" in told
    assert "scheduled with sequence number 2 for " in told
    assert "a tale" in shown["onibus receive books --deferred 1"]
    assert "badly written" in shown["onibus dead-letters list books"]
    assert "resubmitted" in shown["onibus dead-letters resubmit books --all"]
    assert "a bad tale" in shown["onibus receive books"]
    [books] = onibus.told("queue", "list")
    assert (books["active_count"], books["scheduled_count"]) == (0, 1)
    assert (books["dead_lettered_count"], books["duplicates_dropped"]) == (0, 1)


@contextmanager
def announced(directory: Path, *args: str) -> Iterator[str]:
    """Run a server as people do; give what it says before it is ready."""
    process = subprocess.Popen(
        command("--http-port", "0", "--amqp-port", "0", "--sqs-port", "0", *args),
        env=environment(COLUMNS="300", **OWN_KEY_ONLY),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = ""
        while "onibus is ready" not in told:
            line = process.stdout.readline()
            assert line, told
            told += line
        yield told
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "how",
    [
        ("--config", str(ROOT / "examples/onibus.toml"), "--data", "data"),
        ("--data", "elsewhere", "--tls"),
        ("--ephemeral",),
    ],
)
def test_what_a_server_suggests_can_be_typed_as_it_stands(
    how: tuple[str, ...], tmp_path: Path
) -> None:
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    with announced(tmp_path, *how) as told:
        typed = told.partition("Try in another terminal:\n")[2].splitlines()[:3]
        for line in typed:
            subprocess.run(
                line.strip(),
                shell=True,
                env=environment(PATH=path),
                cwd=tmp_path,
                check=True,
                timeout=PATIENCE_S,
            )
    assert len(typed) == 3


def test_a_program_is_suggested_as_the_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "onibus"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert serve.called() == str(program)
    monkeypatch.setenv("PATH", str(program.parent))
    assert serve.called() == "onibus"
