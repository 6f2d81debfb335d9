"""The systemd unit and the container file of examples/: what they run, runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server.processes import OWN_KEY_ONLY, PATIENCE_S, environment
from tests.server.server_helpers import developing
from tests.source_tree import ROOT, text_of

UNIT = "examples/onibus.service"
IMAGE = "examples/Containerfile"
#: Ports that are free, instead of those that are known.
PORTS = ["--http-port", "0", "--amqp-port", "0", "--sqs-port", "0"]


def instruction(name: str) -> list[str]:
    """Return the words of an instruction of the container file."""
    (line,) = re.findall(rf"^{name} .*?(\[.*\])$", text_of(IMAGE), re.M)
    words: list[str] = json.loads(line)
    return words


@contextmanager
def running(words: list[str]) -> Iterator[str]:
    """Run what starts a server; give the address that it tells."""
    assert words[0].endswith("/onibus")
    process = subprocess.Popen(
        [sys.executable, "-m", "onibus", *words[1:], *PORTS],
        env=environment(**OWN_KEY_ONLY),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = re.match(r"onibus is ready: (\S+)", process.stdout.readline())
        assert ready is not None, process.communicate()[1]
        yield ready[1]
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_container_starts_and_finds_itself_healthy(tmp_path: Path) -> None:
    words = [*instruction("ENTRYPOINT"), *instruction("CMD")]
    words[words.index("/data")] = str(tmp_path / "data")
    with running(words) as address:
        assert address.startswith("https://0.0.0.0:")
        port = address.rpartition(":")[2]
        check = [sys.executable, *instruction("HEALTHCHECK")[1:]]
        check[-1] = check[-1].replace(":5300/", f":{port}/")
        assert port in check[-1]
        subprocess.run(check, check=True, timeout=PATIENCE_S)
    assert (tmp_path / "data" / "tls-certificate.pem").is_file()


def test_the_container_replaces_the_emulator_as_its_comment_says(tmp_path: Path) -> None:
    (line,) = re.findall(r"^# +(--development .*)$", text_of(IMAGE), re.M)
    assert line in text_of("docs/security.md")
    words = [*instruction("ENTRYPOINT"), *shlex.split(line), "--quiet"]
    words[words.index("/data")] = str(tmp_path / "data")
    with running(words) as address:
        port = address.rpartition(":")[2]
        for host, status in (("localhost", 200), ("evil.example", 403)):
            answer = httpx.get(
                f"http://127.0.0.1:{port}/v1/queues",
                headers={"host": f"{host}:{port}", **developing()},
                trust_env=False,
                timeout=PATIENCE_S,
            )
            assert answer.status_code == status


def test_the_unit_starts_a_server(tmp_path: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", text_of(UNIT), re.M)
    words = shlex.split(line.replace("%S/onibus", str(tmp_path / "data")))
    words[words.index("/etc/onibus/onibus.toml")] = str(ROOT / "examples/onibus.toml")
    with running(words) as address:
        assert address.startswith("http://127.0.0.1:")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "onibus.service"
    # Whether the program is installed is not the question.
    unit.write_text(text_of(UNIT).replace("/usr/local/bin/onibus", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
