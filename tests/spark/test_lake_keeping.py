"""Retention of a lake: which rows go, and that readers and audits see a complete rest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from deltalake import DeltaTable

from onibus.cli.values import keep_ms_of
from onibus.client import Client
from onibus.core.errors import InvalidArgument, LogGap
from onibus.core.message import Message
from onibus.spark import lake_capture
from onibus.spark.jobs.audit import FAILED, INCOMPLETE, Verdict, audit
from onibus.spark.lake import ERRORS, KEEP_MS, MESSAGES, OUTCOMES, TABLES, tables_of
from onibus.spark.lake_capture import has_news
from onibus.spark.lake_files import LakeDamaged, LakeFailed
from onibus.spark.lake_keeping import expired
from onibus.spark.lake_manifest import FileRow, Manifest, Progress
from tests.client.server_helpers import ServerThread
from tests.spark.lake_helpers import Captures, Crash, consume, data_files, wait_until_gone
from tests.spark.test_lake_steps import Steps, end_lease

DAY_MS = 86_400_000
KEEP = 30 * DAY_MS


class Days:
    """A queue over weeks: the server's clock moves, and that of captures with it."""

    def __init__(self, bus: Client, connection: str, patch: pytest.MonkeyPatch) -> None:
        self.bus, self._patch = bus, patch
        self.connection = connection
        self.captures = Captures(self.connection, "orders")
        bus.create_queue("orders", enable_partitioning=True, requires_duplicate_detection=True)

    def send(self, first: int, last: int) -> None:
        """Send messages of two partitions."""
        keys = [f"k{at % 4}" for at in range(first, last + 1)]
        self.bus.send_batch(
            "orders",
            [
                Message(body=b"%d" % at, message_id=f"m{at}", partition_key=key)
                for at, key in zip(range(first, last + 1), keys, strict=True)
            ],
        )

    def move(self, days: float) -> None:
        """Move the clocks."""
        now = self.bus.advance(int(days * DAY_MS))
        self.set_capture_clock(now)

    def set_capture_clock(self, now_ms: float) -> None:
        self._patch.setattr(lake_capture, "_now_ms", lambda: now_ms)

    def ids(self, place: Path, table: str = MESSAGES) -> list[int]:
        """The messages that another program reads, by their ids, or the numbers of outcomes."""
        found = DeltaTable(self.captures.lake(place).address(table)).to_pyarrow_table()
        if table == OUTCOMES:
            return sorted(found.column("number").to_pylist())
        return sorted(int(one[1:]) for one in found.column("message_id").to_pylist())

    def audited(self, place: Path, **given: Any) -> Verdict:
        source = {"connection": self.connection, "entity": "orders"}
        return audit(no_spark, source, str(place), **given)


def no_spark() -> Any:
    raise AssertionError("a small lake needs no Spark")


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Iterator[Days]:
    with ServerThread() as server, server.client() as bus:
        yield Days(bus, server.connection_string, monkeypatch)


@pytest.mark.promise("R9")
def test_old_rows_go_and_an_audit_covers_the_rest(days: Days, tmp_path: Path) -> None:
    days.send(1, 12)
    days.captures.run(tmp_path, keep_ms=KEEP)
    days.move(20)
    days.send(13, 20)
    # These outcomes are younger than their messages.
    consume(days.bus, "orders")
    days.captures.run(tmp_path)
    assert days.audited(tmp_path).passed
    old = data_files(tmp_path / "orders" / MESSAGES)
    days.move(11.5)
    days.send(21, 24)
    done = days.captures.run(tmp_path)
    assert done.removed == 12
    assert days.ids(tmp_path) == list(range(13, 25))
    assert len(days.ids(tmp_path, OUTCOMES)) == 20
    verdict = days.audited(tmp_path)
    assert (verdict.verdict, verdict.messages) == ("PASSED", 12)
    assert verdict.kept_from == {at: first for at, (first, _) in verdict.covered.items()}
    assert any("retention removed the messages before" in one for one in verdict.remarks)
    assert days.captures.run(tmp_path).removed == 0

    days.move(20)
    assert days.captures.run(tmp_path).removed == 8 + 20
    assert days.ids(tmp_path) == [21, 22, 23, 24]
    assert days.ids(tmp_path, OUTCOMES) == []
    assert days.audited(tmp_path).passed
    # Another capture, an hour later: no file is left that only a removed row needed.
    days.captures.run(tmp_path)
    assert not set(old) & set(data_files(tmp_path / "orders" / MESSAGES))


@pytest.mark.promise("R9")
def test_removed_rows_stay_for_readers_that_began_before(days: Days, tmp_path: Path) -> None:
    days.send(1, 4)
    days.captures.run(tmp_path, keep_ms=KEEP)
    began = DeltaTable(days.captures.lake(tmp_path).address(MESSAGES))
    later = days.bus.advance(40 * DAY_MS)
    days.set_capture_clock(later)
    assert days.captures.run(tmp_path).removed == 4
    assert began.to_pyarrow_table().num_rows == 4
    assert days.ids(tmp_path) == []
    place = days.captures.lake(tmp_path)
    logs = {table: place.log(table) for table in TABLES}
    assert place.vacuum(logs, _modified_ms(tmp_path) + KEEP_MS / 2) == 0
    assert began.to_pyarrow_table().num_rows == 4
    place.vacuum(logs, _modified_ms(tmp_path) + KEEP_MS + 60_000)
    assert data_files(tmp_path / "orders" / MESSAGES) == []


def _modified_ms(place: Path) -> float:
    """The time of the youngest file."""
    return max(os.stat(one).st_mtime for one in place.rglob("*") if one.is_file()) * 1_000


@pytest.mark.promise("R9")
def test_the_lake_records_how_long_it_keeps_rows(days: Days, tmp_path: Path) -> None:
    days.send(1, 4)
    with pytest.raises(InvalidArgument, match="retention removes whole days"):
        days.captures.run(tmp_path, keep_ms=DAY_MS - 1)
    assert not (tmp_path / "orders").exists()
    days.captures.run(tmp_path, keep_ms=KEEP)
    days.captures.run(tmp_path, keep_ms=0)
    days.move(40)
    assert days.captures.run(tmp_path).removed == 0
    lake = days.captures.lake(tmp_path)
    assert has_news(days.bus, lake, tables_of("orders"), KEEP)
    assert days.captures.run(tmp_path, keep_ms=KEEP).removed == 4
    verdict = days.audited(tmp_path)
    assert verdict.verdict == INCOMPLETE, "there is nothing to check"
    assert verdict.findings == tuple(one for one in verdict.findings if not one.count)
    days.send(5, 6)
    days.captures.run(tmp_path)
    assert (days.ids(tmp_path), days.audited(tmp_path).passed) == ([5, 6], True)


@pytest.mark.promise("R9")
def test_a_wrong_clock_of_a_capture_removes_nothing(days: Days, tmp_path: Path) -> None:
    days.send(1, 4)
    days.captures.run(tmp_path, keep_ms=KEEP)
    days.set_capture_clock(days.bus.advance(0) + 36_500 * DAY_MS)
    assert days.captures.run(tmp_path).removed == 0
    assert days.ids(tmp_path) == [1, 2, 3, 4]


@pytest.mark.promise("R9")
def test_a_quiet_lake_is_captured_when_rows_are_too_old(days: Days, tmp_path: Path) -> None:
    days.send(1, 4)
    days.captures.run(tmp_path, keep_ms=KEEP)
    lake, tables = days.captures.lake(tmp_path), tables_of("orders")
    assert not has_news(days.bus, lake, tables)
    days.set_capture_clock(days.bus.advance(0) + 40 * DAY_MS)
    assert has_news(days.bus, lake, tables)


@pytest.mark.promise("R9")
def test_a_lost_file_is_a_hole_and_a_removed_range_is_not(days: Days, tmp_path: Path) -> None:
    days.send(1, 8)
    days.captures.run(tmp_path, keep_ms=KEEP)
    days.move(20)
    days.send(9, 16)
    days.captures.run(tmp_path)
    days.move(15)
    days.captures.run(tmp_path)
    assert days.ids(tmp_path) == list(range(9, 17))
    lake = days.captures.lake(tmp_path)
    lost = tmp_path / "orders" / lake.files(MESSAGES)[0].name
    lost.rename(tmp_path / "lost")
    with pytest.raises(LakeFailed, match="is missing or was changed"):
        days.captures.run(tmp_path)
    assert days.audited(tmp_path).verdict == FAILED
    (tmp_path / "lost").rename(lost)
    # Without the commit that removed rows, the lake does not have what it had.
    newest = max((tmp_path / "orders" / MESSAGES / "_delta_log").glob("*.json"))
    newest.unlink()
    for read in (days.captures.run, days.audited):
        with pytest.raises(LakeDamaged, match="Restore that folder"):
            read(tmp_path)


@pytest.mark.promise("R9")
def test_a_gap_goes_with_the_rows_around_it(days: Days, tmp_path: Path) -> None:
    bus = days.bus
    bus.create_queue("plain")
    plain = Captures(days.connection, "plain")
    bus.send_batch("plain", [Message(body=b"%d" % at) for at in range(1, 5)])
    plain.run(tmp_path, keep_ms=KEEP)
    bus.send_batch("plain", [Message(body=b"%d" % at) for at in range(5, 9)])
    for reader in bus.readers("plain"):
        bus.delete_reader("plain", reader.name)
    consume(bus, "plain")
    wait_until_gone(bus, "plain", 9)
    bus.send_batch("plain", [Message(body=b"9")])
    with pytest.raises(LogGap):
        plain.run(tmp_path)
    plain.run(tmp_path, accept_gap=True)
    days.move(40)
    bus.send_batch("plain", [Message(body=b"10")])
    assert plain.run(tmp_path).removed == 5
    progress = plain.lake(tmp_path).manifest().tables[MESSAGES]
    assert (progress.start, progress.next, progress.gaps) == ([10], [11], [])
    source = {"connection": days.connection, "entity": "plain"}
    assert audit(no_spark, source, str(tmp_path)).passed


@pytest.mark.promise("R9")
def test_a_retention_that_is_cut_off_before_any_step(
    days: Days, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is cut off, the audit finds no contradiction, and the next capture ends it."""

    def is_bad(number: int) -> bool:
        return number % 3 == 0

    template = tmp_path / "template"
    days.send(1, 12)
    days.captures.run(template, keep_ms=KEEP, bad=is_bad)
    consume(days.bus, "orders")
    days.captures.run(template, bad=is_bad)
    days.move(20)
    days.send(13, 16)
    days.captures.run(template, bad=is_bad)
    days.move(20)
    steps = Steps(monkeypatch)
    place, last = tmp_path / "lake", 0
    names: list[str] = []
    while not names or last <= len(names):
        # The lake at its address: each attempt begins with the same files and readers.
        shutil.copytree(template, place)
        steps.allow(last if names else None)
        try:
            days.captures.run(place, bad=is_bad, new_identity=True)
        except Crash:
            assert names
        names = names or steps.names
        steps.allow(None)
        end_lease(place)
        verdict = days.audited(place)
        assert verdict.verdict != FAILED, (names[last - 1 : last + 1], verdict)
        days.captures.run(place, bad=is_bad, new_identity=True)
        assert days.ids(place) == [13, 14, 15, 16]
        assert days.audited(place).passed
        assert set(days.ids(place, ERRORS)) <= {13, 14, 15, 16}
        shutil.rmtree(place)
        last += 3
    assert names.count("put_new") >= 4, "errors, messages, outcomes and the manifest"


def test_how_users_write_it() -> None:
    assert [keep_ms_of(one) for one in (None, "all", "90d", "36h")] == [
        None, 0, 90 * DAY_MS, 36 * 3_600_000,
    ]  # fmt: skip
    for written, words in (
        ("23h", "use at least 1d, or all"),
        ("0", "at least 1d"),
        ("x", "is not"),
    ):
        with pytest.raises(typer.BadParameter, match=words):
            keep_ms_of(written)


def test_files_leave_in_order_and_outcomes_stay_with_their_messages() -> None:
    """Days are not in order where an operator set a wrong clock back."""

    def rows(table: str, *days: int) -> list[FileRow]:
        stats = [
            json.dumps({"maxValues": {"sequence_number": 10 * at + 10}}) for at in range(len(days))
        ]
        return [
            FileRow(f"2026-05-{day:02}", 0, 10 * at + 1, 10 * at + 10, 10, 1, "", table, stats[at])
            for at, day in enumerate(days)
        ]

    files = {
        MESSAGES: rows(MESSAGES, 1, 2, 20, 3), OUTCOMES: rows(OUTCOMES, 1, 2, 4, 5),
        ERRORS: rows(ERRORS, 1, 2, 20, 3),
    }  # fmt: skip
    tables = {MESSAGES: Progress([1], [41]), OUTCOMES: Progress([1], [41])}
    manifest = Manifest(keep_ms=DAY_MS, tables=tables)
    now = datetime(2026, 5, 12, tzinfo=UTC).timestamp() * 1_000
    found = expired(manifest, files, now)
    assert [one.table for one in found] == [ERRORS, MESSAGES, OUTCOMES]
    assert [len(one.files) for one in found] == [2, 2, 2]
    assert [one.starts for one in found] == [{}, {0: 21}, {0: 21}]
    found = expired(manifest, files, now + 10 * DAY_MS)
    assert [len(one.files) for one in found] == [4, 4, 4]
    assert found[1].starts == {0: 41}
    almost = datetime(2026, 5, 3, tzinfo=UTC).timestamp() * 1_000 - 1
    assert [one.starts for one in expired(manifest, files, almost)[1:]] == []
    assert len(expired(manifest, files, almost + 1)[1].files) == 1


@pytest.mark.promise("R9")
def test_rows_that_stay_for_longer_than_a_calendar_has_years(days: Days, tmp_path: Path) -> None:
    days.send(1, 4)
    assert days.captures.run(tmp_path, keep_ms=1_000_000 * DAY_MS).removed == 0
    assert days.ids(tmp_path) == [1, 2, 3, 4]
