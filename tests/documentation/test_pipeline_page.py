"""The commands of docs/pipeline.md that run on, as printed: `onibus up`, and clusters.

A shell runs them elsewhere, in an activated environment, with the default ports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.test_quick_starts import environment, separate_network
from tests.source_tree import ROOT, text_of
from tests.test_docs import FENCE

#: Commands that run until they are stopped, and what each says when it is ready.
READY = {
    "onibus up": "onibus is ready",
    "Master --host": "Starting Spark master at",
    "Worker spark:": "Successfully registered with master",
    "SparkConnectServer": "Connect server started at",
}
#: Reads a program's log until it says something; all programs end with the shell.
START = r"""
set -eu
trap 'kill $(jobs -p); wait' EXIT
until_told() {
    for _ in $(seq 6000); do
        if grep -q "$2" "$1"; then return; fi
        sleep 0.1
    done
    cat "$1" >&2
    exit 1
}
"""
#: The page says that there is a queue of this name.
QUEUE = "onibus queue create orders >&2\nonibus send orders '3 apples' >&2\n"
AUDIT = "onibus pipeline audit orders --json --lake {}\n"


def script(blocks: list[str]) -> str:
    """Return all blocks as one program, with those that run on in the background."""
    lines = [START]
    for number, line in enumerate("\n".join(blocks).splitlines()):
        ready = next((words for name, words in READY.items() if name in line), None)
        if ready is None:
            lines.append(f"{line} >&2" if line.startswith("onibus") else line)
            continue
        log = f"log-{number}"
        lines += [f"{line} > {log} 2>&1 &", f"until_told {log} '{ready}'"]
        if "onibus up" in line:
            lines.append(QUEUE)
    lines += [AUDIT.format(lake) for lake in ("shared/lake", "shared/other")]
    lines += ["until onibus pipeline audit orders --lake lake >&2; do sleep 1; done"]
    return "\n".join(lines)


def in_network(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a shell program in a folder, with its own loopback and our commands."""
    helper = "from tests.documentation.default_ports import raise_loopback as up; up()"
    (folder / "script").write_text(text, "utf-8")
    up = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {helper}"]
    shell = f'"$@" && exec bash {folder / "script"}'
    variables = environment()
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    return subprocess.run(
        [*separate_network(), "bash", "-c", shell, "bash", *up],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_commands_that_run_on(tmp_path: Path) -> None:
    blocks = [
        match[2] for match in FENCE.finditer(text_of("docs/pipeline.md")) if match[1] == "bash"
    ]
    text = script(blocks)
    assert all(name in text for name in READY)
    done = in_network(tmp_path, text)
    logs = {path.name: path.read_text("utf-8")[-2_000:] for path in tmp_path.glob("log-*")}
    assert done.returncode == 0, f"{done.stderr} {logs}"
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["verdict"], one["messages"]) for one in verdicts] == [("PASSED", 1)] * 2
