"""The same commands on a cluster: standalone, and over Spark Connect."""

from __future__ import annotations

import json
from pathlib import Path

from onibus.client import Client
from onibus.spark.lake import MESSAGES, Lake
from tests.client.server_helpers import ServerProcess
from tests.spark.clusters import connect_server, standalone
from tests.spark.commands import Commands
from tests.spark.writing_helpers import log_of

ROWS = 30


def put_rows(folder: Path) -> Path:
    """Put a file of rows into a folder."""
    folder.mkdir()
    rows = [
        {"at": 1_700_000_000_000 + n, "line": n, "message_id": f"m{n}", "body": "x" * n}
        for n in range(ROWS)
    ]
    (folder / "rows.json").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return folder


def into_a_lake(
    commands: Commands, server: ServerProcess, client: Client, entity: str, folder: Path
) -> None:
    """Send rows and capture them."""
    client.create_queue(entity, enable_partitioning=True, requires_duplicate_detection=True)
    connect = ("--connect", server.connection_string)
    source = put_rows(folder / "in")
    given = ("--format", "json", "--checkpoint", folder / "state")
    assert commands.run("ingest", source, entity, *given, *connect)["rows"] == ROWS
    told = commands.run("capture", entity, "--lake", folder / "lake", *connect)
    lake = Lake(str(folder / "lake"), entity)
    files = lake.files(MESSAGES)
    assert (told["messages"], told["files"]) == (ROWS, len(files))
    found = [row for one in files for row in lake.read(one)[1].to_pylist()]
    assert sorted(row["message_id"] for row in found) == sorted(f"m{n}" for n in range(ROWS))


def every_job(
    commands: Commands, server: ServerProcess, client: Client, entity: str, folder: Path
) -> None:
    """Run each of the jobs, the one with what the other made."""
    again = f"{entity}-again"
    client.create_queue(again)
    into_a_lake(commands, server, client, entity, folder)
    connect = ("--connect", server.connection_string)
    lake = ("--lake", folder / "lake")
    assert commands.run("audit", entity, *lake, *connect)["passed"]
    commands.run("report", entity, *lake, *connect, "--to", folder / "page.html")
    replay = ("replay", entity, "--to", again, "--state", folder / "replays")
    assert commands.run(*replay, "--name", "a", *lake, *connect)["sent"] == ROWS
    assert commands.run(*replay, "--name", "b", *connect)["sent"] == ROWS
    assert len(log_of(client, again, "body")) == 2 * ROWS
    given = (folder / "in", "--format", "json")
    arrival = ("--arrival-time", "at", "--arrival-order", "line")
    told = commands.run("process", *given, *arrival, "--out", folder / "out", "--stream")
    assert told["accepted"] == ROWS
    told = commands.run("deduplicate", *given, *arrival, "--out", folder / "clean")
    assert told["clean"] == ROWS


def test_a_standalone_cluster(
    server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> None:
    settings = {"spark.executor.memory": "512m", "spark.cores.max": "2"}
    with (
        standalone(tmp_path) as master,
        Commands(tmp_path, master, **settings) as commands,
    ):
        every_job(commands, server, client, entity, tmp_path)


def test_spark_connect(server: ServerProcess, client: Client, entity: str, tmp_path: Path) -> None:
    with connect_server(tmp_path) as master, Commands(tmp_path, master) as commands:
        every_job(commands, server, client, entity, tmp_path)
        # What our parts refuse somewhere in that server is told as it is.
        refused = commands.run("replay", entity, "--name", "c", "--where", "nowhere = 1",
                               "--state", tmp_path / "replays",
                               "--connect", server.connection_string, code=4)  # fmt: skip
        assert "nowhere" in refused
