"""Jobs as commands, with a real server: into a queue, into a lake, and back, whoever is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from onibus.client import Client
from tests.client.server_helpers import ServerProcess
from tests.spark.commands import Commands
from tests.spark.faults import AFTER, PUBLISH, Fault, FaultyProxy, gapless
from tests.spark.writing_helpers import log_of

ORDERS = 40


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("commands")) as commands:
        yield commands


def put_orders(folder: Path, first: int, last: int) -> None:
    """Put a file of orders into a folder."""
    folder.mkdir(exist_ok=True)
    rows = [{"order": n, "customer": f"c{n % 5}", "total": n / 2} for n in range(first, last)]
    (folder / f"{first}.json").write_text("\n".join(map(json.dumps, rows)), "utf-8")


def test_files_become_tables(commands: Commands, tmp_path: Path) -> None:
    rows = [
        {"at": 1_700_000_000_000 + at, "line": at, "message_id": f"id-{at % 3}", "body": f"{at}"}
        for at in range(5)
    ]
    source, out, clean = (tmp_path / name for name in ("rows.json", "out", "clean"))
    source.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    given = ("--format", "json", "--arrival-time", "at", "--arrival-order", "line")
    settings = ("--set", "requires_duplicate_detection=true")
    told = commands.run("process", source, "--out", out, *given, *settings)
    assert (told["accepted"], told["duplicates"], told["waiting"]) == (3, 2, 0)
    accepted = pq.read_table(out / "table=accepted").to_pylist()
    assert sorted(row["sequence_number"] for row in accepted) == [1, 2, 3]
    told = commands.run("deduplicate", source, "--out", clean, *given)
    assert (told["clean"], told["duplicates"]) == (3, 2)
    kept = pq.read_table(clean / "table=clean").to_pylist()
    assert sorted(row["line"] for row in kept) == [0, 1, 2]


Sent = list[tuple[Any, ...]]


def ingested(
    commands: Commands, server: ServerProcess, client: Client, entity: str, folder: Path
) -> Sent:
    """Ingest orders, twice, the first time with a kill; return their rows of the log."""
    connect = ("--connect", server.connection_string)
    # The committer is killed after it has published; the next run does that batch again.
    fields = ("--id", "order", "--session", "customer", "--property", "total")
    state = ("--checkpoint", folder / "state")
    ingest = ("ingest", folder / "in", entity, "--format", "json", *fields, *state)
    put_orders(folder / "in", 0, ORDERS // 2)
    with FaultyProxy(server, [Fault(PUBLISH, AFTER, "client")]) as proxy:
        commands.run(*ingest, "--connect", proxy.connection_string, code=4)
        assert proxy.left == 0
    put_orders(folder / "in", ORDERS // 2, ORDERS)
    commands.run(*ingest, *connect)
    assert commands.run(*ingest, *connect)["rows"] == 0
    sent = log_of(client, entity, "sequence_number", "message_id", "session_id", "body")
    assert sorted(int(row[1]) for row in sent) == list(range(ORDERS))
    assert gapless(client, entity, [row[0] for row in sent])
    assert client.queue(entity).duplicates_dropped == 0
    return sent


@pytest.mark.promise("R6", "X7")
def test_into_a_queue_into_a_lake_and_back(
    commands: Commands, server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> None:
    again, renamed = f"{entity}-again", f"{entity}-renamed"
    client.create_queue(
        entity,
        enable_partitioning=True,
        requires_session=True,
        requires_duplicate_detection=True,
        retention_ms=3_600_000,
    )
    client.create_queue(again)
    client.create_queue(renamed)
    place = ("--lake", tmp_path / "lake")
    connect = ("--connect", server.connection_string)
    sent = ingested(commands, server, client, entity, tmp_path)
    assert commands.run("capture", entity, *place, *connect)["messages"] == ORDERS
    page = tmp_path / "page.html"
    assert commands.run("audit", entity, *place, *connect, "--report", page)["passed"]
    assert "<svg" in page.read_text("utf-8")
    commands.run("report", entity, *place, *connect, "--to", page)

    # From the lake. Everything is killed when the first of two chunks was published.
    replay = ("replay", entity, "--state", tmp_path / "replays")
    first = (*replay, "--name", "first", "--to", again, *place)
    told = commands.run(*first, *connect, "--dry-run")
    assert (told["chosen"], told["sent"]) == (ORDERS, 0)
    assert log_of(client, again, "body") == []
    with FaultyProxy(server, [Fault(PUBLISH, AFTER, "all")], all=commands.kill) as proxy:
        slowly = ("--connect", proxy.connection_string, "--rate", "4")
        commands.run(*first, *slowly, code=-signal.SIGKILL)
        assert proxy.left == 0
    assert 0 < len(log_of(client, again, "body")) < ORDERS
    told = commands.run(*first, *connect)
    assert (told["chosen"], told["sent"]) == (ORDERS, ORDERS)
    found = log_of(client, again, "message_id", "session_id", "body")
    assert sorted(found) == sorted(row[1:] for row in sent)
    # In the order that each session had.
    for session in {row[2] for row in sent}:
        before = [row[1] for row in sent if row[2] == session]
        assert [row[0] for row in found if row[1] == session] == before

    # From what is retained, with new ids, no faster than allowed: the last chunk waits.
    told = commands.run(
        *replay, *connect, "--name", "n", "--to", renamed, "--new-ids", "--rate", "4"
    )
    assert told["sent"] == ORDERS
    assert told["seconds"] >= 5
    numbers = {row[0] for row in sent}
    assert {row[0] for row in log_of(client, renamed, "message_id")} == {f"n/{n}" for n in numbers}
    # With their old ids they are duplicates where they came from.
    commands.run(*replay, *connect, "--name", "back", "--where", "session_id = 'c1'")
    assert len(log_of(client, entity, "body")) == ORDERS
    assert client.queue(entity).duplicates_dropped == ORDERS // 5
