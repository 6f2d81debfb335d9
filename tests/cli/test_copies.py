"""`onibus backup` of a running server, and `onibus restore`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from onibus.client import Client
from onibus.core.message import Message
from tests.cli.conftest import Onibus
from tests.client.server_helpers import development_string
from tests.server.processes import environment, served
from tests.source_tree import ROOT

NOBODY = Onibus("http://127.0.0.1:1")


def config_of(tmp_path: Path) -> Path:
    """Write the configuration of a server with a store on another disk."""
    file = tmp_path / "onibus.toml"
    file.write_text('data = "data"\n[stores]\none = "data"\ntwo = "disk2"\n[queues.orders]\n')
    return file


def bodies(port: int) -> list[bytes]:
    with Client.connect(development_string(port)) as client:
        return [one.body for one in client.peek("orders", limit=100)]


def test_a_running_server_is_copied_and_comes_back(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with served("--config", config) as server:
        with Client.connect(development_string(server.port)) as client:
            client.send("orders", Message(body=b"before"))
            [told] = NOBODY.told("backup", str(tmp_path / "copy"), "--config", str(config))
            client.send("orders", Message(body=b"after"))
        # It goes on, and a second backup of it goes elsewhere.
        result = NOBODY.run("backup", str(tmp_path / "copy"), "--config", str(config), code=1)
        assert "is not empty: choose an empty directory" in result.stderr
        assert bodies(server.port) == [b"before", b"after"]
    assert [store["name"] for store in told["stores"]] == ["namespace", "one", "two"]
    assert told["bytes"] > 0
    assert NOBODY.told("check", str(tmp_path / "copy"))[0]["sound"]
    back = tmp_path / "back"
    shown = NOBODY.shown(
        "restore", str(tmp_path / "copy"), "--data", str(back), "--store", f"two={back}/two"
    )
    assert shown.startswith(f"{back}: 3 stores, ")
    assert (back / "two" / "two.sqlite").is_file()
    again = tmp_path / "again.toml"
    again.write_text('data = "back"\n[stores]\none = "back"\ntwo = "back/two"\nthree = "new"\n')
    with served("--config", again) as server:
        assert bodies(server.port) == [b"before"]


def test_a_configuration_may_have_stores_that_came_later(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with served("--config", config):
        NOBODY.run("backup", str(tmp_path / "copy"), "--config", str(config))
    later = tmp_path / "later.toml"
    later.write_text('data = "back"\n[stores]\none = "back"\ntwo = "disk3"\nthree = "disk4"\n')
    NOBODY.run("restore", str(tmp_path / "copy"), "--config", str(later))
    assert (tmp_path / "disk3" / "two.sqlite").is_file()
    with served("--config", later) as server:
        assert bodies(server.port) == []


def test_what_cannot_be_copied_or_restored(tmp_path: Path) -> None:
    empty = str(tmp_path / "empty")
    result = NOBODY.run("backup", str(tmp_path / "copy"), "--data", empty, code=1)
    assert "is not a data directory" in result.stderr
    assert not (tmp_path / "copy").exists()
    assert "is not a backup" in NOBODY.run("restore", empty, "--data", empty, code=1).stderr
    with served("--config", config_of(tmp_path)):
        lost = ("backup", str(tmp_path / "copy"), "--data", str(tmp_path / "data"))
        assert "name its directory with --store" in NOBODY.run(*lost, code=1).stderr
        unknown = ("--store", f"tow={tmp_path}/disk2")
        assert "unknown store 'tow'" in NOBODY.run(*lost, *unknown, code=2).stderr
        NOBODY.run(*lost, "--store", f"two={tmp_path}/disk2")
    result = NOBODY.run("check", str(tmp_path / "data"), *unknown, code=2)
    assert "unknown store 'tow'" in result.stderr
    NOBODY.run("check", str(tmp_path / "data"), "--store", f"two={tmp_path}/disk2")
    store = tmp_path / "copy" / "two.sqlite"
    store.write_bytes(store.read_bytes()[:-1])
    result = NOBODY.run("restore", str(tmp_path / "copy"), "--data", empty, code=6)
    assert "differs from what the backup wrote" in result.stderr
    assert not Path(empty).exists()
    NOBODY.run("backup", empty, "--config", str(tmp_path / "none.toml"), code=2)
    NOBODY.run("backup", empty, "--store", "two", code=2)


def test_a_copy_is_its_owners_and_scripts_see_one_line(tmp_path: Path) -> None:
    with served("--config", config_of(tmp_path)):
        words = ["backup", str(tmp_path / "copy"), "--config", str(tmp_path / "onibus.toml")]
        done = subprocess.run(
            [sys.executable, "-m", "onibus", *words],
            env=environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    for path in (tmp_path / "copy", *(tmp_path / "copy").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
