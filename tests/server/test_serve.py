"""`onibus serve` as a real process: start, stop, kill, and what it refuses."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from onibus.security.keys import DEVELOPMENT_KEY
from onibus.server.exposure import is_loopback
from tests.server.processes import (
    OWN_KEY_ONLY,
    PATIENCE_S,
    Served,
    command,
    environment,
    refused,
    served,
    wait_for,
)
from tests.server.server_helpers import developing, signed

CONFIG = """
[queues.orders]
requires_duplicate_detection = true
lock_duration_ms = "PT5M"
[queues.waiting]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "onibus.toml"
    path.write_text(CONFIG, "utf-8")
    return path


def secret_of(path: str) -> str:
    """Return the root key out of the file that a server leaves for its owner."""
    parts = dict(part.partition("=")[::2] for part in Path(path).read_text().strip().split(";"))
    return str(parts["SharedAccessKey"])


def send(client: httpx.Client, body: str, message_id: str | None = None) -> Any:
    content = {"body": body, "message_id": message_id}
    answer = client.post("/v1/entities/orders/messages", json=content, headers=developing())
    assert answer.status_code == 200, answer.text
    return answer.json()


def receive(client: httpx.Client, queue: str = "orders", **how: Any) -> httpx.Response:
    path = f"/v1/entities/{queue}/receive"
    return client.post(path, json=how, headers=developing())


# Starting and stopping


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_one_line_when_ready_and_a_clean_stop(tmp_path: Path, how: int) -> None:
    process = subprocess.Popen(
        command("--data", tmp_path / "data", "--http-port", "0", "--quiet"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("onibus is ready: http://127.0.0.1:")
    process.send_signal(how)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "")
    assert err.splitlines()[-1].endswith("stopped")


def test_people_are_told_where_things_are_and_no_secret(tmp_path: Path, config: Path) -> None:
    process = subprocess.Popen(
        command("--data", tmp_path / "data", "--http-port", "0", "--config", config),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    told = ""
    while not told.endswith("s)\n"):
        told += process.stdout.readline()
    process.terminate()
    told += "".join(process.communicate(timeout=PATIENCE_S))
    secret = secret_of(str(tmp_path / "data/connection-string"))
    assert secret not in told
    assert "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;" in told
    assert str(tmp_path / "data/connection-string") in told
    assert "onibus send orders" in told
    assert told.count("onibus is ready") == 1


def test_logs_as_json(tmp_path: Path) -> None:
    with served("--ephemeral", "--log-format", "json") as server:
        code, _, err = server.stop()
        lines = [json.loads(line) for line in err.splitlines()]
    assert code == 0
    assert [line["message"].partition(":")[0] for line in lines] == ["ready", "stopping", "stopped"]
    assert lines[0]["http"] == server.http
    assert {"time", "level", "logger"} <= lines[0].keys()


@pytest.mark.promise("B8")
def test_what_is_missing_is_made_and_kept(tmp_path: Path, config: Path) -> None:
    data = tmp_path / "data"
    with served("--config", config, "--data", data) as server:
        assert server.ready["made"] == ["orders", "waiting"]
        with server.client() as client:
            first = send(client, "x", "one")
            (held,) = receive(client).json()["messages"]
        assert server.stop()[0] == 0
    assert data.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o077 == 0 for file in data.iterdir())
    with served("--config", config, "--data", data) as server:
        assert server.ready["made"] == []
        with server.client() as client:
            assert send(client, "x", "one")["duplicate_of"] == first["sequence_number"]
            # The lock has survived the stop.
            assert receive(client).json() == {"messages": []}
            answer = client.post(
                "/v1/entities/orders/complete",
                json={"tokens": [held["token"]]},
                headers=developing(),
            )
            assert answer.status_code == 204


def test_a_stop_answers_those_who_wait(config: Path) -> None:
    with served("--config", config, "--ephemeral") as server, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(poll, server) for _ in range(7)]
        with server.client() as client:
            send(client, "x")
            line = 'onibus_waiting_receivers{entity="waiting"} 7\n'
            wait_for(lambda: line in client.get("/metrics/per-object", headers=developing()).text)
        code, _, err = server.stop()
        answers = [one.result(timeout=PATIENCE_S) for one in waiting]
    assert code == 0
    assert "Traceback" not in err
    assert [(one.status_code, one.json()["type"]) for one in answers] == [(503, "stopping")] * 7
    assert all(one.json()["retryable"] for one in answers)


def poll(server: Served) -> httpx.Response:
    with server.client() as client:
        return receive(client, "waiting", wait_ms=20_000)


@pytest.mark.promise("B8")
def test_a_stop_under_load_loses_nothing_that_was_answered(tmp_path: Path, config: Path) -> None:
    data = tmp_path / "data"
    with served("--config", config, "--data", data) as server:
        with sending(server) as accepted:
            code, _, err = server.stop()
        assert (code, "Traceback" in err) == (0, False), err
    with served("--config", config, "--data", data) as server:
        assert everything(server) >= set(accepted)


def test_a_kill_loses_nothing_that_was_answered(tmp_path: Path, config: Path) -> None:
    data = tmp_path / "data"
    answered: list[str] = []
    for _ in range(3):
        with served("--config", config, "--data", data) as server:
            with sending(server) as accepted:
                server.process.kill()
                assert server.process.wait() == -signal.SIGKILL
            answered += accepted
    with served("--config", config, "--data", data) as server:
        assert everything(server) >= set(answered)


@contextmanager
def sending(server: Served) -> Iterator[list[str]]:
    """Send from four threads until nobody answers; give a list of what was accepted."""
    accepted: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        senders = [pool.submit(send_until_refused, server, accepted) for _ in range(4)]
        wait_for(lambda: len(accepted) > 20)
        yield accepted
        for sender in senders:
            sender.result(timeout=PATIENCE_S)


def send_until_refused(server: Served, accepted: list[str]) -> None:
    with server.client() as client:
        while True:
            content = {"body": uuid4().hex}
            try:
                answer = client.post(
                    "/v1/entities/orders/messages", json=content, headers=developing()
                )
            except httpx.HTTPError:
                return
            if answer.status_code != 200:
                return
            accepted.append(content["body"])


def everything(server: Served) -> set[str]:
    """Receive all there is."""
    found: set[str] = set()
    with server.client() as client:
        while messages := receive(client, limit=1_000, delete=True).json()["messages"]:
            found |= {one["body"] for one in messages}
    return found


# What is in the way


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, told = refused("--data", tmp_path / "data", "--http-port", port)
    assert code == 5
    assert f"127.0.0.1 port {port} is in use: stop the program" in told
    assert "Traceback" not in told


def test_an_address_that_is_not_ours(tmp_path: Path) -> None:
    flags = ("--host", "192.0.2.1", "--allow-plain-text", "--http-port", "0")
    code, told = refused("--data", tmp_path / "data", *flags, **OWN_KEY_ONLY)
    assert (code, "192.0.2.1" in told) == (5, True)


def test_a_directory_in_use(tmp_path: Path) -> None:
    with served("--data", tmp_path / "data"):
        code, told = refused("--data", tmp_path / "data", "--http-port", "0")
    assert code == 6
    assert "stop the other server or use another directory" in told


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, told = refused("--data", tmp_path / "file", "--http-port", "0")
    assert (code, "Traceback" in told) == (6, False)


def test_damaged_data_are_not_served(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "namespace.sqlite").write_bytes(b"nonsense" * 1_000)
    code, told = refused("--data", data, "--http-port", "0")
    assert (code, "Traceback" in told) == (6, False)
    assert (data / "namespace.sqlite").read_bytes() == b"nonsense" * 1_000


def test_mistakes_of_configuration_end_it_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "onibus.toml"
    path.write_text("http_prot = 1")
    code, told = refused("--config", path)
    assert (code, told) == (
        2,
        f"onibus: {path}: unknown name 'http_prot': did you mean http_port?\n",
    )
    path.write_text('[queues.a]\nforward_to = "nowhere"')
    code, told = refused("--config", path, "--ephemeral", "--http-port", "0")
    assert (code, told) == (
        2,
        f"onibus: {path}: queues.a: no entity 'nowhere' to forward to\n",
    )


def test_a_server_asks_for_as_many_files_as_it_may_have() -> None:
    with served("--ephemeral", files_max="60:400") as server:
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        wait_for(lambda: len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) >= 200)
        for one in crowd:
            one.close()


# Credentials; tests/server/test_development.py has more


OUTSIDE = ("--host", "0.0.0.0", "--allow-plain-text")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--host", "0.0.0.0"], "use --tls (with a self-signed certificate)"),
        (["--host", "::"], "plain text on host ::, which others can reach"),
        (["--host", "0.0.0.0", "--insecure", "--tls"], "insecure on host 0.0.0.0"),
        (["--host", "0.0.0.0", "--insecure", "--allow-plain-text"], "use keys, or listen on 127"),
        ([*OUTSIDE, "--insecure", "--allow-host", "bus"], "insecure on host 0.0.0.0"),
        ([*OUTSIDE, "--ephemeral"], "ONIBUS_ROOT_KEY"),
        ([*OUTSIDE, "--development"], "development on host 0.0.0.0, which others can reach"),
        (["--host", "0.0.0.0", "--tls", "--development"], "name the hosts that clients use with"),
        (["--host", "0.0.0.0", "--development", "--allow-host", "bus"], "plain text on host"),
        (["--host", "no.such.name.invalid"], "cannot resolve host 'no.such.name.invalid'"),
        (["--ephemeral", "--no-development"], "cannot store a generated key"),
    ],
)
def test_what_would_let_strangers_in_is_refused(tmp_path: Path, args: list[str], told: str) -> None:
    data = tmp_path / "data"
    code, found = refused(*args, "--data", data, "--http-port", "0", **OWN_KEY_ONLY)
    assert (code, told in found) == (2, True), found
    assert not data.exists()


@pytest.mark.parametrize("how", [(), ("--development",), (*OUTSIDE, "--allow-host", "bus")])
def test_the_well_known_key_is_refused_under_any_name(tmp_path: Path, how: tuple[str, ...]) -> None:
    path = tmp_path / "onibus.toml"
    path.write_text(f'[[keys]]\nname = "mine"\nprimary = "{DEVELOPMENT_KEY}"')
    code, told = refused("--config", path, "--ephemeral", *how)
    assert (code, "well-known SAS_KEY_VALUE" in told) == (2, True)


def status(server: Served, headers: dict[str, str], **how: Any) -> int:
    with server.client(**how) as client:
        return client.get("/v1/queues", headers=headers).status_code


def test_from_outside_only_tls_and_keys_of_our_own(tmp_path: Path) -> None:
    flags = ("--data", tmp_path / "data", "--host", "0.0.0.0", "--tls")
    with served(*flags, **OWN_KEY_ONLY) as server:
        assert server.ready["development"] == ""
        own = secret_of(server.ready["connection_file"])
        trust = ssl.create_default_context(cafile=server.ready["certificate"])
        server.http = f"https://localhost:{server.port}"
        assert status(server, signed(key=own), verify=trust) == 200
        assert status(server, developing(), verify=trust) == 401
        server.http = f"http://127.0.0.1:{server.port}"
        assert status(server, signed(key=own)) == 403
        code, _, err = server.stop()
        assert (code, own in err) == (0, False)


def test_insecure_asks_nothing_of_programs_on_this_machine() -> None:
    with served("--ephemeral", "--insecure") as server:
        assert status(server, {}) == 200
        assert status(server, {"origin": "http://evil.example"}) == 403
        with server.client() as client:
            answer = client.get("/v1/keys")
        assert "it has no keys" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
    ],
)
def test_what_loopback_is(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
