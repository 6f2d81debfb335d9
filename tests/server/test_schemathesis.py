"""Requests made up from the OpenAPI document, against a server process: none of them breaks it.

Whatever is sent, no answer is a fault of ours (5xx), every answer has the status, type and form
that the document says, and what the document forbids is refused. A failure is played again with the
seed below.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx

from tests.server.http_helpers import token
from tests.server.process_helpers import server_process
from tests.server.processes import PATIENCE_S
from tests.server.server_helpers import SECRET
from tests.source_tree import ROOT

SEED = 1
#: Requests made up for each call, beside those that try every limit of every field.
EXAMPLES = 8
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance,negative_data_rejection,"
    "missing_required_header,unsupported_method,allow_header_conformance,ignored_auth"
)

SETTINGS = {
    "/v1/queues/q": {"retention_ms": 600_000, "requires_duplicate_detection": True},
    "/v1/queues/sessions": {"requires_session": True},
    "/v1/queues/fifo": {"fifo": True, "content_based_deduplication": True},
    "/v1/queues/parts": {"enable_partitioning": True},
    "/v1/topics/t": {},
    "/v1/subscriptions/t%2Fsubscriptions%2Fs": {},
}


def prepare(address: str, headers: dict[str, str]) -> None:
    """Make what the requests are about."""
    with httpx.Client(
        base_url=address, headers=headers, trust_env=False, timeout=PATIENCE_S
    ) as client:
        for path, settings in SETTINGS.items():
            assert client.put(path, json=settings).status_code == 201
        for name in ("q", "sessions", "fifo", "parts", "t"):
            message = {"body": "x", "session_id": "a"}
            for _ in range(20):
                sent = client.post(f"/v1/entities/{name}/messages", json=message)
                assert sent.status_code == 200, sent.text


def test_made_up_requests_break_nothing(tmp_path: Path) -> None:
    # Keys are among what is made up: the well-known one would be rejected after the first.
    config = tmp_path / "onibus.toml"
    config.write_text(f'[[keys]]\nname = "owner"\nprimary = "{SECRET}"\n')
    headers = token("sb://localhost/", "owner", SECRET, 3_600)
    log = tmp_path / "server.log"
    flags = ("--ephemeral", "--test-mode", "--config", str(config))
    with server_process(log, *flags) as (address, _):
        prepare(address, headers)
        command = [
            *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
            *("run", f"{address}/openapi.json", "--no-color", "--warnings", "off"),
            *("--checks", CHECKS, "--phases", "coverage,fuzzing"),
            *("--max-examples", str(EXAMPLES), "--seed", str(SEED)),
            *("--generation-database", "none", "--suppress-health-check", "all"),
            # Streams have no end; tests/console/test_calls.py reads them.
            *("--exclude-path", "/v1/test/reset", "--exclude-path", "/v1/overview/watch"),
            *("--exclude-path", "/v1/entities/{entity}/tail"),
            *("--exclude-path", "/v1/entities/{entity}/watch"),
            # Pages for a browser are not JSON.
            *("--exclude-path", "/console", "--exclude-path", "/console/"),
            *("--header", f"Authorization: {headers['authorization']}"),
        ]
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.server.schemathesis_hooks"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert ran.returncode == 0, ran.stdout[-8_000:] + ran.stderr[-2_000:]
        with httpx.Client(
            base_url=address, headers=headers, trust_env=False, timeout=PATIENCE_S
        ) as client:
            assert client.get("/v1/alarms").json() == {"alarms": []}
    assert "request failed" not in log.read_text()
