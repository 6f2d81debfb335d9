"""The doctor looks at a real machine, and sees what is planted there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from onibus.server import doctor as module
from onibus.server.doctor import BAD, GOOD, WARNING, Examination, doctor
from onibus.store.sqlite import SqliteStore
from tests.source_tree import ROOT


def named(found: list[Examination], name: str) -> Examination:
    (one,) = [one for one in found if one.name == name]
    return one


def test_everything_is_looked_at(tmp_path: Path) -> None:
    found = doctor(tmp_path, ports=[0])
    assert {one.name for one in found} == {
        *("python", "sqlite", "uvloop", "open files", "clock", "port 0"),
        *("data directory", "disk space", "disk sync", "permissions", "credentials"),
        "file locks",
    }
    for one in found:
        assert one.state in (GOOD, WARNING, BAD)
        assert one.found
        assert (one.state == GOOD) == (not one.advice), one
    assert named(found, "python").state == named(found, "sqlite").state == GOOD
    assert named(found, "clock").state == GOOD
    assert named(found, "data directory").found == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = named(doctor(ports=[port]), f"port {port}")
    assert (taken.state, "choose another port" in taken.advice) == (BAD, True)
    assert named(doctor(ports=[port]), f"port {port}").state == GOOD


def test_a_directory_that_is_none_is_seen(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert named(doctor(tmp_path / "file" / "data"), "data directory").state == BAD
    made = named(doctor(tmp_path / "a" / "b"), "data directory")
    assert (made.state, made.found) == (GOOD, f"{tmp_path / 'a' / 'b'} will be created")
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_to_is_seen(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert named(doctor(tmp_path), "data directory").state == BAD


def test_a_directory_that_anybody_reads_is_seen(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert named(doctor(tmp_path), "permissions").state == WARNING
    tmp_path.chmod(0o750)
    assert named(doctor(tmp_path), "permissions").state == GOOD


def test_the_key_of_programs_is_named_and_guarded(tmp_path: Path) -> None:
    assert "is created at the first start" in named(doctor(tmp_path), "credentials").found
    path = tmp_path / "connection-string"
    path.write_text("Endpoint=sb://localhost;SharedAccessKey=secret")
    path.chmod(0o600)
    good = named(doctor(tmp_path), "credentials")
    assert (good.state, "--development" in good.found, "secret" in good.found) == (
        GOOD,
        True,
        False,
    )
    path.chmod(0o644)
    assert named(doctor(tmp_path), "credentials").state == WARNING


def test_few_open_files_are_seen() -> None:
    command = ["prlimit", "--nofile=256", sys.executable, "-m", "onibus", "doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    (few,) = [one for one in found if one["name"] == "open files"]
    assert (few["state"], "LimitNOFILE" in few["advice"]) == (WARNING, True)


@pytest.mark.parametrize(("free", "state"), [(1 << 20, BAD), (1 << 30, WARNING), (1 << 40, GOOD)])
def test_a_full_disk_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str
) -> None:
    monkeypatch.setattr(module, "free_bytes", lambda _: free)
    assert named(doctor(tmp_path), "disk space").state == state


@pytest.mark.parametrize(
    ("seconds", "state"), [(0.5, WARNING), (0.002, GOOD), (0.000_001, WARNING)]
)
def test_slow_and_lying_disks_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, state: str
) -> None:
    monkeypatch.setattr(module, "sync_times", lambda _: [seconds] * 3)
    assert named(doctor(tmp_path), "disk sync").state == state


def test_syncs_are_really_measured(tmp_path: Path) -> None:
    times = module.sync_times(tmp_path)
    assert len(times) == module.SYNCS
    assert all(seconds > 0 for seconds in times)


def test_a_directory_that_is_open_is_seen(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "namespace.sqlite", "namespace")
    assert named(doctor(tmp_path), "file locks").found == "a server has the directory open"
    store.close()
    assert named(doctor(tmp_path), "file locks").found.endswith("none is open now")
