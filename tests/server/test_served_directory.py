"""A directory that a real server process has used: backed up beside it, checked after a kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from onibus.server.backup import backup
from onibus.server.check import check
from onibus.server.restore import restore
from tests.server.processes import PATIENCE_S
from tests.source_tree import ROOT


def test_backup_beside_a_server_and_check_after_its_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox.bind(str(tmp_path / "notify"))
    inbox.settimeout(PATIENCE_S)
    command = [sys.executable, "-m", "onibus", "serve", "--data", str(data), "--json"]
    command += ["--http-port", "0", "--insecure", "--log-format", "json", "--log-level", "debug"]
    environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        assert inbox.recv(100) == b"READY=1"
        with httpx.Client(base_url=ready["http"], trust_env=False, timeout=PATIENCE_S) as client:
            assert client.put("/v1/queues/q", json={}).is_success
            for n in range(20):
                path = "/v1/entities/q/messages"
                assert client.post(path, json={"body": str(n)}).is_success
            backup(data, tmp_path / "backup")
            assert client.post(path, json={"body": "later"}).is_success
            assert "onibus_messages_accepted_total 21" in client.get("/metrics").text
        server.send_signal(signal.SIGKILL)
        _, logs = server.communicate(timeout=PATIENCE_S)
    finally:
        inbox.close()
        server.kill()
        server.wait()
    lines = [json.loads(line) for line in logs.splitlines()]
    assert sum(line.get("path") == path for line in lines) == 21
    report = check(data)
    assert (report.findings, report.messages) == ([], 21)
    restore(tmp_path / "backup", tmp_path / "restored")
    report = check(tmp_path / "restored")
    assert (report.sound, report.messages) == (True, 20)
