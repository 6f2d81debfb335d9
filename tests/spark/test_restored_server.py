"""A server that was restored from a backup: lost messages that were read are an error (R3, R9).

The server is a process on real files, which are copied and put back while it does not run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onibus.client import Client
from onibus.core.errors import EntityReplaced, Failed, ReaderTaken
from onibus.server.backup import backup
from onibus.server.restore import restore
from onibus.spark.jobs.audit import INCOMPLETE, audit
from onibus.spark.jobs.capture import Captured
from tests.client.server_helpers import ServerProcess
from tests.spark.lake_helpers import Captures, consume, send
from tests.spark.micro_batches import Query, new_checkpoint
from tests.spark.test_audit import no_spark

AGAIN = "assigned numbers from 4 on again, or lost them"


class Site:
    """A server and its backup."""

    def __init__(self, place: Path) -> None:
        self._data, self._copy = place / "data", place / "copy"
        self.server = ServerProcess(self._data)
        self.client: Client

    def start(self) -> None:
        self.server.start()
        self.client = Client.connect(self.server.connection_string)

    def stop(self) -> None:
        self.client.close()
        self.server.kill()

    def back_up(self) -> None:
        self.stop()
        shutil.copytree(self._data, self._copy)
        self.start()

    def put_back(self) -> None:
        """Put the copied files back."""
        self.stop()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self.start()

    @property
    def options(self) -> dict[str, str]:
        return {"connection": self.server.connection_string}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    site.start()
    site.client.create_queue("q", retention_ms=3_600_000)
    send(site.client, "q", 1, 3)
    yield site
    site.stop()


def is_rejected(
    run: Callable[[], object], before: list[int], rows: Callable[[], list[int]]
) -> None:
    with pytest.raises(Failed, match=AGAIN):
        run()
    assert rows() == before


@pytest.mark.promise("R9")
@pytest.mark.parametrize("sent", [0, 2, 20])
def test_a_lake_that_is_ahead_of_the_server_is_not_continued(
    site: Site, tmp_path: Path, sent: int
) -> None:
    lake = tmp_path / "lake"

    def run(**given: Any) -> Captured:
        return Captures(site.options, "q").run(lake, **given)

    def rows() -> list[int]:
        return Captures(site.options, "q").numbers(lake)

    run()
    site.back_up()
    send(site.client, "q", 4, 8)
    consume(site.client, "q")
    run()
    site.put_back()
    assert rows() == list(range(1, 9))
    if sent:
        send(site.client, "q", 104, 103 + sent)
    is_rejected(run, list(range(1, 9)), rows)
    verdict = audit(no_spark, {**site.options, "entity": "q"}, str(lake))
    assert verdict.verdict == INCOMPLETE
    assert any("restored from a backup" in one for one in verdict.incomplete), verdict.incomplete
    is_rejected(lambda: run(new_identity=True), list(range(1, 9)), rows)
    is_rejected(lambda: run(accept_gap=True), list(range(1, 9)), rows)
    # Another lake is right, with the messages that the server has.
    Captures(site.options, "q").run(tmp_path / "other")
    assert Captures(site.options, "q").numbers(tmp_path / "other") == list(range(1, 4 + sent))


@pytest.mark.promise("R9")
@pytest.mark.parametrize("sent", [2, 20])
def test_a_capture_that_runs_while_the_server_is_restored_stops(
    site: Site, tmp_path: Path, sent: int
) -> None:
    lake, rounds = tmp_path / "lake", iter(range(100))
    captures = Captures(site.options, "q")

    def told(done: Captured) -> None:
        round = next(rounds)
        if round == 1:
            site.back_up()
        elif round == 2:
            send(site.client, "q", 4, 8)
        elif captures.numbers(lake) == list(range(1, 9)) and not done.behind:
            site.put_back()
            send(site.client, "q", 104, 103 + sent)

    with pytest.raises(Failed, match=AGAIN):
        captures.run(lake, interval_s=0.01, on_progress=told)
    assert captures.numbers(lake) == list(range(1, 9))


@pytest.mark.promise("R9")
def test_a_lake_and_a_server_of_the_same_time_continue(site: Site, tmp_path: Path) -> None:
    lake, copy = tmp_path / "lake", tmp_path / "lake-copy"
    captures = Captures(site.options, "q")
    captures.run(lake)
    site.back_up()
    shutil.copytree(lake, copy)
    send(site.client, "q", 4, 8)
    captures.run(lake)
    site.put_back()
    shutil.rmtree(lake)
    shutil.copytree(copy, lake)
    send(site.client, "q", 104, 109)
    captures.run(lake)
    assert captures.numbers(lake) == list(range(1, 10))
    assert dict(captures.rows(lake))[4] == b"104"


@pytest.mark.promise("R9")
def test_an_older_lake_of_a_newer_server_names_the_other_one(site: Site, tmp_path: Path) -> None:
    lake, copy = tmp_path / "lake", tmp_path / "lake-copy"
    captures = Captures(site.options, "q")
    captures.run(lake)
    shutil.copytree(lake, copy)
    send(site.client, "q", 4, 8)
    captures.run(lake)
    shutil.rmtree(lake)
    shutil.copytree(copy, lake)
    with pytest.raises(ReaderTaken, match="an earlier state of it"):
        captures.run(lake)
    captures.run(lake, new_identity=True)
    assert captures.numbers(lake) == list(range(1, 9)), "the log still has them"


@pytest.mark.promise("R3", "R9")
@pytest.mark.parametrize("sent", [2, 20])
def test_another_server_with_the_same_names(site: Site, tmp_path: Path, sent: int) -> None:
    """Its entity has the same incarnation, and messages from before the lake's last one."""
    lake, checkpoint = tmp_path / "lake", new_checkpoint(Random(1).randrange)
    other = Site(tmp_path / "other")
    other.start()
    other.client.create_queue("q", retention_ms=3_600_000)
    send(other.client, "q", 1, sent)
    send(site.client, "q", 4, 8)

    def stream(of: Site) -> None:
        source = {**of.options, "entity": "q", "columns": "message_id,body", "mode": "log"}
        Query("log", "files", source, {}, "").run(checkpoint)

    stream(site)
    Captures(site.options, "q").run(lake)
    with pytest.raises(EntityReplaced, match="on another server"):
        Captures(other.options, "q").run(lake)
    verdict = audit(no_spark, {**other.options, "entity": "q"}, str(lake))
    assert verdict.verdict == INCOMPLETE
    assert any("on another server" in one for one in verdict.incomplete), verdict.incomplete
    with pytest.raises(EntityReplaced, match="this is another server"):
        stream(other)
    other.stop()
    Captures(site.options, "q").run(lake)
    assert Captures(site.options, "q").numbers(lake) == list(range(1, 9))


@pytest.mark.promise("R9")
def test_a_backup_that_was_restored_by_command(site: Site, tmp_path: Path) -> None:
    """`onibus restore` gives stores new identities; a lake is compared by its rows."""
    lake = tmp_path / "lake"
    Captures(site.options, "q").run(lake)
    backup(str(tmp_path / "data"), str(tmp_path / "copy"))
    send(site.client, "q", 4, 8)
    Captures(site.options, "q").run(lake)
    site.stop()
    restore(str(tmp_path / "copy"), str(tmp_path / "restored"))
    site.server = ServerProcess(tmp_path / "restored")
    site.start()
    send(site.client, "q", 104, 123)
    with pytest.raises(Failed, match=AGAIN):
        Captures(site.options, "q").run(lake)


@pytest.mark.promise("R3")
@pytest.mark.parametrize("sent", [0, 2, 20])
@pytest.mark.parametrize("reader", ["", "r"])
def test_a_stream_that_is_ahead_of_the_server_is_not_continued(
    site: Site, sent: int, reader: str
) -> None:
    checkpoint = new_checkpoint(Random(1).randrange)

    def run() -> None:
        source = {**site.options, "entity": "q", "columns": "message_id,body", "mode": "log"}
        source |= {"reader": reader} if reader else {}
        Query("log", "files", source, {}, "").run(checkpoint)

    run()
    site.back_up()
    send(site.client, "q", 4, 8)
    run()
    batches = dict(checkpoint.offsets)
    assert sum(len(rows) for rows in checkpoint.output.values()) == 8
    site.put_back()
    if sent:
        send(site.client, "q", 104, 103 + sent)
    with pytest.raises(Failed, match=AGAIN):
        run()
    # A batch that was planned and not noted as done is read again: that is an error too.
    checkpoint.commits.discard(checkpoint.last)
    with pytest.raises(Failed, match=AGAIN):
        run()
    assert dict(checkpoint.offsets) == batches
