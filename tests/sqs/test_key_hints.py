"""The key pair of SQS, in the banner and where a wrong one is rejected."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.processes import OWN_KEY_ONLY, command, environment, served
from tests.sqs.clients import client_of


def code_of(sqs: Any) -> str:
    with pytest.raises(ClientError) as error:
        sqs.list_queues()
    return str(error.value.response["Error"]["Code"])


@pytest.mark.parametrize(
    ("variables", "hint"),
    [
        ({}, "use test with the secret test"),
        (OWN_KEY_ONLY, "use the name of a shared access key"),
    ],
    ids=["development", "own key"],
)
def test_a_wrong_key_is_logged_with_a_hint(
    tmp_path: Path, variables: dict[str, str], hint: str
) -> None:
    with served("--data", tmp_path, **variables) as server:
        for key in ("AKIAIOSFODNN7EXAMPLE", "test"):
            assert code_of(client_of(server.ready["sqs"], key, "wrong")) in (
                "InvalidClientTokenId",
                "SignatureDoesNotMatch",
            )
        _, _, told = server.stop()
    (line,) = [one for one in told.splitlines() if "SQS credentials rejected" in one]
    assert hint in line
    assert "AKIAIOSF" in line
    assert "EXAMPLE" not in line, "what follows may be a secret"


@pytest.mark.parametrize("variables", [{}, OWN_KEY_ONLY], ids=["development", "own key"])
def test_the_banner_names_the_key_pair(tmp_path: Path, variables: dict[str, str]) -> None:
    process = subprocess.Popen(
        command("--http-port", "0", "--data", tmp_path),
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(" ".join(line.split()))
            if line.startswith("onibus is ready"):
                break
    finally:
        process.kill()
        process.communicate()
    expected = "SQS key pair test and test"
    if variables:
        file = tmp_path / "connection-string"
        expected = f"SQS key pair SharedAccessKeyName and SharedAccessKey in {file}"
    assert expected in lines


def test_the_key_pair_of_the_connection_string_works(tmp_path: Path) -> None:
    with served("--data", tmp_path, **OWN_KEY_ONLY) as server:
        text = Path(server.ready["connection_file"]).read_text()
        parts = dict(part.split("=", 1) for part in text.strip().split(";") if part)
        key, secret = parts["SharedAccessKeyName"], parts["SharedAccessKey"]
        assert client_of(server.ready["sqs"], key, secret).list_queues()
