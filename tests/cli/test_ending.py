"""How commands end: exit codes, errors in both forms, what every command has, completion."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from onibus import Bus, Message
from onibus.cli.main import app
from onibus.cli.session import connection_string, exit_code
from onibus.core import errors
from tests.cli.conftest import Onibus
from tests.client.server_helpers import ServerThread, development_string
from tests.cutting_proxy import CuttingProxy
from tests.source_tree import ROOT

#: Commands that are a server, or work on files.
ASK_NOBODY = {
    *("serve", "up", "backup", "restore", "check", "doctor"),
    *("pipeline process", "pipeline deduplicate"),
}


def leaves(command: Any, path: str) -> dict[str, set[str]]:
    """Return the flags of every command, by its words."""
    if isinstance(command, typer.core.TyperGroup):
        found: dict[str, set[str]] = {}
        for name, one in command.commands.items():
            found |= leaves(one, f"{path} {name}")
        return found
    return {path.strip(): {flag for parameter in command.params for flag in parameter.opts}}


def test_every_command_speaks_json_and_says_what_it_does() -> None:
    found = leaves(typer.main.get_command(app), "")
    assert {"queue create", "send", "top", "check", "doctor", "serve"} <= set(found)
    assert [words for words, flags in found.items() if "--json" not in flags] == []
    for words, flags in found.items():
        if words not in ASK_NOBODY:
            assert {"--connect", "--trust"} <= flags, words
        result = CliRunner().invoke(app, [*words.split(), "--help"])
        assert result.exit_code == 0


def test_refused(onibus: Onibus) -> None:
    plain = onibus.run("queue", "show", "nothing", code=1)
    assert plain.stderr.startswith("onibus: entity-not-found: ")
    told = json.loads(onibus.run("queue", "show", "nothing", "--json", code=1).stderr)
    assert (told["error"], told["outcome"]) == ("entity-not-found", "refused")
    onibus.run("queue", "create", "q", "--set", "colour=red", code=1)


def test_usage(onibus: Onibus) -> None:
    onibus.run("queue", "create", code=2)
    onibus.run("queue", "create", "q", "--set", "nonsense", code=2)
    onibus.run("queue", "create", "q", "--set", "lock_duration_ms=soon", code=2)
    onibus.run("queue", "update", "q", code=2)
    onibus.run("queue", "delete", "q", code=2)
    onibus.run("send", "q", code=2)
    onibus.run("send", "q", "--from", "no/such/file", code=2)
    onibus.run("queue", "list", "--connect", "@no/such/file", code=2)


def test_unknown(server: ServerThread) -> None:
    with server.client() as client:
        client.create_queue("q")
    with CuttingProxy(server.port, [0]) as proxy:
        onibus = Onibus(development_string(proxy.port).replace("localhost", "127.0.0.1"))
        told = json.loads(onibus.run("purge", "q", "--yes", "--json", code=3).stderr)
    assert told["outcome"] == "unknown"


def test_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    result = Onibus(f"http://127.0.0.1:{port}").run("queue", "list", code=4)
    assert "Start a server with" in result.stderr
    assert exit_code(errors.StoreFailed("broken")) == 4
    assert exit_code(errors.Damaged("broken")) == 6


def test_where_the_server_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONIBUS_CONNECTION", raising=False)
    assert "SAS_KEY_VALUE" in connection_string(None)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "connection-string").write_text("Endpoint=sb://file;\n")
    assert connection_string(None) == "Endpoint=sb://file;"
    monkeypatch.setenv("ONIBUS_CONNECTION", "http://variable")
    assert connection_string(None) == "http://variable"
    assert connection_string("http://flag") == "http://flag"


def test_check_and_doctor(onibus: Onibus, tmp_path: Path) -> None:
    async def fill() -> None:
        async with Bus.open(tmp_path / "data") as bus:
            await bus.create_queue("q")
            await bus.send_batch("q", [Message(body=b"x" * 5_000) for _ in range(200)])

    asyncio.run(fill())
    assert onibus.shown("check", str(tmp_path / "data")).startswith("sound: ")
    [report] = onibus.told("check", str(tmp_path / "data"))
    assert (report["sound"], report["messages"]) == (True, 200)
    store = tmp_path / "data" / "main.sqlite"
    content = bytearray(store.read_bytes())
    content[len(content) // 2] ^= 0xFF
    store.write_bytes(content)
    assert "NOT sound" in onibus.run("check", str(tmp_path / "data"), code=1).stdout
    onibus.run("check", str(tmp_path / "nothing"), code=1)
    names = [one["name"] for one in onibus.told("doctor", "--data", str(tmp_path))]
    assert {"python", "sqlite", "disk sync"} <= set(names)
    assert "disk sync" in onibus.shown("doctor", "--data", str(tmp_path))


def test_check_finds_stores_that_are_elsewhere(onibus: Onibus, tmp_path: Path) -> None:
    data, elsewhere, config = tmp_path / "data", tmp_path / "elsewhere", tmp_path / "onibus.toml"
    config.write_text(f'data = "{data}"\n[stores]\none = "{elsewhere}"\n')

    async def fill() -> None:
        async with Bus.open(data, stores={"one": elsewhere}) as bus:
            await bus.create_queue("q")
            await bus.send("q", Message(body=b"x"))

    asyncio.run(fill())
    onibus.run("check", str(data), code=1)
    for where in ([str(data), "--store", f"one={elsewhere}"], ["--config", str(config)]):
        [report] = onibus.told("check", *where)
        assert (report["sound"], report["messages"]) == (True, 1)


def test_words_are_completed() -> None:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "_ONIBUS_COMPLETE": "complete_bash",
        "COMP_WORDS": "onibus que",
        "COMP_CWORD": "1",
    }
    program = "import sys; sys.argv = ['onibus']; from onibus.cli.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["queue"], done.stderr


def test_a_reader_that_has_seen_enough(server: ServerThread) -> None:
    with server.client() as client:
        client.create_queue("q")
        client.send_batch("q", [Message(body=b"x" * 500) for _ in range(3_000)])
    peek = [sys.executable, "-m", "onibus", "peek", "q", "-n", "3000", "--json"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "ONIBUS_CONNECTION": server.connection_string,
    }
    with subprocess.Popen(
        peek, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout.startswith("onibus ")


def test_what_a_server_needs_is_loaded_and_no_more() -> None:
    # A client's packages, Arrow and Spark take longer to load than the rest together.
    program = (
        "import sys; import onibus.cli.main, onibus.cli.running;"
        "print([name for name in ('httpx', 'pyarrow', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
