"""What the audit says of a lake: PASSED, FAILED or INCOMPLETE, and what is wrong; without a JVM."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from onibus.cli import exits
from onibus.cli.main import app
from onibus.client import Client
from onibus.core.errors import LogGap
from onibus.core.message import Message
from onibus.spark.delta_log import DeltaLog
from onibus.spark.jobs.audit import FAILED, INCOMPLETE, PASSED, Verdict, audit
from onibus.spark.jobs.capture import Captured
from onibus.spark.lake import MESSAGES, OUTCOMES, TABLES
from onibus.spark.lake_files import LakeDamaged
from tests.client.server_helpers import ServerThread
from tests.spark.iceberg_helpers import contents
from tests.spark.lake_helpers import Captures, consume, send, wait_until_gone


@pytest.fixture
def bus(own_server: ServerThread, entity: str) -> Iterator[Client]:
    with own_server.client() as client:
        client.create_queue(entity, enable_partitioning=True, requires_duplicate_detection=True)
        yield client


def no_spark() -> Any:
    raise AssertionError("a small lake needs no Spark")


def audited(captures: Captures, place: Path, **given: Any) -> Verdict:
    source = {"connection": captures.options.server, "entity": captures.entity}
    return audit(no_spark, source, str(place), **given)


def fill(captures: Captures, client: Client, place: Path, **given: Any) -> None:
    """Capture messages and their ends in several files."""
    captures.run(place, **given)
    for first in (1, 11, 21):
        client.send_batch(
            captures.entity,
            [
                Message(body=b"%d" % at, message_id=f"m{at}", partition_key=f"k{at % 3}")
                for at in range(first, first + 10)
            ],
        )
        captures.run(place, **given)
    with client.receiver(captures.entity) as receiver:
        receiver.complete(*receiver.receive(12, wait_ms=0))
    captures.run(place, **given)


@pytest.mark.promise("R9")
def test_an_audit_does_not_pass_on_nothing(
    captures: Captures, bus: Client, tmp_path: Path, entity: str
) -> None:
    verdict = audited(captures, tmp_path)
    assert (verdict.verdict, verdict.messages) == (INCOMPLETE, 0)
    assert len(set(verdict.incomplete)) == len(verdict.incomplete), "each reason appears once"
    captures.run(tmp_path)
    verdict = audited(captures, tmp_path)
    assert verdict.verdict == INCOMPLETE
    assert "nothing to check" in verdict.incomplete[0]
    send(bus, entity, 1, 3)
    captures.run(tmp_path, outcomes=False)
    assert audited(captures, tmp_path).verdict == PASSED
    without = tmp_path / "without"
    captures.run(without, outcomes=False)
    verdict = audited(captures, without)
    assert verdict.verdict == INCOMPLETE
    assert "table outcomes" in verdict.incomplete[0]


@pytest.mark.promise("R9")
def test_a_lake_that_began_without_outcomes(
    captures: Captures, bus: Client, tmp_path: Path, entity: str
) -> None:
    """Messages that ended before are not missing, and the verdict says so."""
    captures.run(tmp_path, outcomes=False)
    send(bus, entity, 1, 10)
    consume(bus, entity)
    captures.run(tmp_path, outcomes=False)
    send(bus, entity, 11, 12)
    captures.run(tmp_path)
    consume(bus, entity)
    captures.run(tmp_path)
    verdict = audited(captures, tmp_path)
    assert (verdict.verdict, verdict.messages, verdict.outcomes) == (PASSED, 12, 2), verdict
    assert any("began without outcomes" in one for one in verdict.remarks)


@pytest.mark.promise("R9")
def test_an_accepted_gap_of_outcomes(
    captures: Captures, bus: Client, tmp_path: Path, entity: str
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    captures.run(one)
    send(bus, entity, 1, 10)
    captures.run(one)
    captures.run(two)
    identity = captures.lake(one).identity()
    bus.delete_reader(entity, f"lake-{identity}-outcomes")
    consume(bus, entity)
    captures.run(two)
    wait_until_outcomes_are_gone(bus, entity)
    with pytest.raises(LogGap, match="accept-gap"):
        captures.run(one)
    captures.run(one, accept_gap=True)
    verdict = audited(captures, one)
    assert verdict.verdict == PASSED, verdict
    assert any("are a gap" in remark for remark in verdict.remarks)


@pytest.mark.promise("R9")
def test_outcomes_that_were_never_recorded_are_a_hole(
    captures: Captures, bus: Client, tmp_path: Path, entity: str
) -> None:
    """Without a reader, outcomes get no numbers, so the numbers show no gap."""
    captures.run(tmp_path)
    send(bus, entity, 1, 4)
    consume(bus, entity)
    captures.run(tmp_path)
    bus.delete_reader(entity, f"lake-{captures.lake(tmp_path).identity()}-outcomes")
    send(bus, entity, 5, 8)
    consume(bus, entity)
    before = _rows_and_logs(tmp_path)
    with pytest.raises(LogGap, match=r"records no outcomes since .*--accept-gap"):
        captures.run(tmp_path)
    assert _rows_and_logs(tmp_path) == before
    captures.run(tmp_path, accept_gap=True)
    send(bus, entity, 9, 10)
    consume(bus, entity)
    captures.run(tmp_path)
    verdict = audited(captures, tmp_path)
    assert (verdict.verdict, verdict.messages, verdict.outcomes) == (PASSED, 10, 6), verdict
    assert any("without outcomes" in one for one in verdict.remarks), verdict


def _rows_and_logs(place: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(place).items() if "_manifest" not in name}


def wait_until_outcomes_are_gone(client: Client, entity: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        ends = client.log_positions(entity, log=OUTCOMES)
        if ends.earliest == ends.latest:
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.promise("R9")
def test_an_audit_of_a_lake_that_grows(
    captures: Captures,
    bus: Client,
    tmp_path: Path,
    entity: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A capture between two tables that the audit reads is not a contradiction."""
    fill(captures, bus, tmp_path)
    check = DeltaLog.check_history
    grown: list[bool] = []

    def check_and_grow(log: DeltaLog) -> None:
        check(log)
        if not grown:
            grown.append(True)
            send(bus, entity, 31, 40)
            consume(bus, entity)
            captures.run(tmp_path)

    monkeypatch.setattr(DeltaLog, "check_history", check_and_grow)
    verdict = audited(captures, tmp_path)
    assert verdict.verdict == PASSED, verdict


@pytest.mark.promise("R9")
def test_a_message_that_ends_during_a_capture(
    captures: Captures, bus: Client, tmp_path: Path, entity: str
) -> None:
    """The lake has its outcome, and the next capture adds the message."""
    captures.run(tmp_path)
    send(bus, entity, 1, 3)
    done: list[bool] = []

    def end_others(_: Captured) -> None:
        if not done:
            done.append(True)
            send(bus, entity, 4, 6)
            consume(bus, entity)

    captures.run(tmp_path, on_progress=end_others)
    assert len(captures.numbers(tmp_path)) == 3
    assert len(captures.numbers(tmp_path, OUTCOMES)) == 6
    verdict = audited(captures, tmp_path)
    assert verdict.verdict == PASSED, verdict
    captures.run(tmp_path)
    assert audited(captures, tmp_path).verdict == PASSED


def test_captures_and_audits_report_to_the_server(
    captures: Captures, bus: Client, tmp_path: Path, entity: str
) -> None:
    fill(captures, bus, tmp_path)
    readers = {one.log: one.lake for one in bus.readers(entity)}
    for table, rows in ((MESSAGES, 30), (OUTCOMES, 12)):
        lake, files = readers[table], captures.lake(tmp_path).files(table)
        assert lake is not None
        assert (lake.files, lake.rows) == (len(files), rows)
        assert lake.size_bytes == sum(one.row.size for one in files)
        assert lake.batch_rows == (10 if table == MESSAGES else 12)
        assert lake.batch_ms is not None
        assert lake.verdict is None
    assert audited(captures, tmp_path, with_broker=False).passed
    assert bus.readers(entity)[0].lake == readers[MESSAGES]
    verdict = audited(captures, tmp_path)
    lake = bus.readers(entity)[0].lake
    assert lake is not None
    assert (lake.verdict, lake.messages, lake.outcomes) == (PASSED, 30, 12)
    assert lake.findings == verdict.remarks
    bus.send(entity, Message(body=b"not captured"))
    assert audited(captures, tmp_path, max_lag_s=-60.0).verdict == INCOMPLETE
    lake = bus.readers(entity)[0].lake
    assert lake is not None
    assert lake.verdict == INCOMPLETE
    assert "lacks 1 messages" in lake.findings[0]


@pytest.mark.promise("R9")
def test_a_lake_that_is_behind_is_incomplete_and_the_range_is_said(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    fill(captures, bus, tmp_path)
    verdict = audited(captures, tmp_path)
    assert verdict.verdict == PASSED, verdict
    assert sum(last - first + 1 for first, last in verdict.covered.values()) == 30
    bus.send(captures.entity, Message(body=b"new", message_id="new"))
    # It is younger than the lag that is allowed, or older.
    assert audited(captures, tmp_path).verdict == PASSED
    verdict = audited(captures, tmp_path, max_lag_s=-5)
    assert verdict.verdict == INCOMPLETE
    assert "lacks 1 messages" in verdict.incomplete[0]


@pytest.mark.promise("R9")
def test_an_accepted_gap_is_named_and_does_not_fail(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    entity = f"{captures.entity}-plain"
    bus.create_queue(entity)
    plain = Captures(captures.options.server, entity)
    send(bus, entity, 1, 3)
    plain.run(tmp_path)
    for reader in bus.readers(entity):
        bus.delete_reader(entity, reader.name)
    send(bus, entity, 4, 6)
    consume(bus, entity)
    wait_until_gone(bus, entity, 7)
    send(bus, entity, 7, 7)
    plain.run(tmp_path, accept_gap=True)
    verdict = audited(plain, tmp_path)
    assert verdict.verdict == PASSED, verdict
    assert dict(verdict.covered) == {0: (1, 7)}
    assert any("messages 4 to 6 of partition 0 are a gap" in one for one in verdict.remarks)


Change = Callable[[pa.Table, random.Random], pa.Table]


def without_one(rows: pa.Table, chance: random.Random) -> pa.Table:
    at = chance.randrange(rows.num_rows)
    return pa.concat_tables([rows.slice(0, at), rows.slice(at + 1)])


def repeated(rows: pa.Table, chance: random.Random) -> pa.Table:
    at = chance.randrange(rows.num_rows)
    return pa.concat_tables([rows.slice(0, at + 1), rows.slice(at, 1), rows.slice(at + 1)])


def altered(rows: pa.Table, chance: random.Random) -> pa.Table:
    column = next(one for one in ("body", "outcome", "problem") if one in rows.column_names)
    other = pa.scalar("purged")
    at = chance.randrange(rows.num_rows)
    mask = pa.array([one == at for one in range(rows.num_rows)])
    changed = pc.if_else(mask, other.cast(rows.schema.field(column).type), rows[column])
    return rows.set_column(rows.column_names.index(column), column, changed)


def swapped(rows: pa.Table, chance: random.Random) -> pa.Table:
    if rows.num_rows < 2:
        return altered(rows, chance)
    one, other = chance.sample(range(rows.num_rows), 2)
    order = list(range(rows.num_rows))
    order[one], order[other] = order[other], order[one]
    return rows.take(order)


@pytest.mark.promise("R9")
def test_the_audit_names_every_change_of_a_lake(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    fill(captures, bus, good, bad=lambda number: number % 7 == 0)
    assert audited(captures, good).verdict == PASSED
    lake, chance = captures.lake(good), random.Random(7)
    files = [one for table in TABLES for one in lake.files(table)]
    assert len(files) > 9
    for one in files:
        for change in (None, without_one, repeated, altered, swapped):
            shutil.rmtree(bad, ignore_errors=True)
            shutil.copytree(good, bad)
            path = bad / captures.entity / one.name
            if change is None:
                path.unlink()
            else:
                pq.write_table(change(pq.ParquetFile(path).read(), chance), path)
            verdict = audited(captures, bad, with_broker=False)
            assert verdict.verdict == FAILED, (one, change)
            named = [words for found in verdict.findings for words in found.examples]
            assert any(one.name in words for words in named), (one, change, named)
            if change is without_one:
                assert any("missing" in found.check and found.count for found in verdict.findings)


@pytest.mark.promise("R9")
def test_the_audit_names_a_changed_byte_of_any_file(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    fill(captures, bus, tmp_path, bad=lambda number: number % 7 == 0)
    lake, chance = captures.lake(tmp_path), random.Random(7)
    for one in [one for table in TABLES for one in lake.files(table)]:
        path = tmp_path / captures.entity / one.name
        content = path.read_bytes()
        # Some of these files can still be read, and some have other columns then.
        for at in [*chance.sample(range(len(content)), 6), 0, len(content) // 2]:
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            verdict = audited(captures, tmp_path)
            named = [words for found in verdict.findings for words in found.examples]
            assert verdict.verdict == FAILED, (one, at)
            assert any(one.name in words for words in named), (one, at, named)
        path.write_bytes(content)
    assert audited(captures, tmp_path).verdict == PASSED


@pytest.mark.promise("R9")
def test_the_audit_names_a_changed_start(captures: Captures, bus: Client, tmp_path: Path) -> None:
    fill(captures, bus, tmp_path)
    manifest = next((tmp_path / captures.entity / "_manifest").glob("*.json"))
    told = json.loads(manifest.read_bytes())
    told["tables"][MESSAGES]["start"] = [one + 1 for one in told["tables"][MESSAGES]["start"]]
    manifest.write_text(json.dumps(told), "utf-8")
    assert audited(captures, tmp_path).verdict == FAILED


@pytest.mark.promise("R9")
@pytest.mark.parametrize(
    "name", ["entity.json", "_manifest", *(f"{one}/_delta_log" for one in TABLES)]
)
def test_the_audit_has_no_verdict_without_what_says_what_counts(
    captures: Captures, bus: Client, tmp_path: Path, name: str
) -> None:
    fill(captures, bus, tmp_path, bad=lambda number: number % 7 == 0)
    path = tmp_path / captures.entity / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    with pytest.raises(LakeDamaged, match=rf"{tmp_path}/{captures.entity}.*[Rr]estore"):
        audited(captures, tmp_path, with_broker=False)


def newer(path: Path) -> None:
    told = json.loads(path.read_bytes())
    path.write_text(json.dumps({**told, "layout": 1_000}), "utf-8")


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


#: Files, the harm done to one of them, the audit's exit code, and the beginning of its error.
UNREADABLE = [
    ("_manifest/*.json", cut, exits.CANNOT_OPEN, "lake-damaged: "),
    ("_manifest/*.json", newer, exits.CANNOT_OPEN, "newer-format: "),
    ("_manifest/*.json", unreadable, exits.CANNOT_OPEN, "lake-damaged: "),
    ("entity.json", cut, exits.CANNOT_OPEN, "lake-damaged: "),
    ("entity.json", unreadable, exits.FAILED, "lake-failed: cannot read "),
    ("messages/_delta_log/*.json", cut, exits.CANNOT_OPEN, "lake-damaged: "),
    ("messages/_delta_log/*.json", unreadable, exits.CANNOT_OPEN, "lake-damaged: "),
    ("messages/*.parquet", unreadable, exits.FAILED, "lake-failed: cannot read "),
]


@pytest.mark.promise("R9")
def test_a_lake_that_cannot_be_read_is_an_error_and_not_a_verdict(
    own_server: ServerThread, captures: Captures, bus: Client, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    fill(captures, bus, good)
    words = ("pipeline", "audit", captures.entity, "--lake", str(bad))
    for names, harm, code, says in UNREADABLE:
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        harm(min((bad / captures.entity).glob(names)))
        done = CliRunner().invoke(app, [*words, "--connect", own_server.connection_string])
        last = done.stderr.splitlines()[-1]
        assert done.exit_code == code, (names, harm, done.stderr)
        assert last.startswith(f"onibus: {says}"), done.stderr
        assert str(bad / captures.entity) in last
        assert "FAILED" not in done.output


@pytest.mark.promise("R9")
def test_a_broker_that_lost_a_message_contradicts_the_lake(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    fill(captures, bus, tmp_path)
    lake = captures.lake(tmp_path)
    # The lake says of a message that was completed that it is still there.
    [one, *_] = [one for one in lake.files(OUTCOMES) if one.row.rows > 1]
    rows = lake.read(one)[1]
    twice = pa.concat_tables([rows.slice(0, 1), rows.slice(0, 1), rows.slice(2)])
    path = tmp_path / captures.entity / one.name
    pq.write_table(twice, path)
    found = {one.check: one.count for one in audited(captures, tmp_path).findings if one.count}
    assert found["messages with more than one outcome"] == 1
    assert found["messages with neither an outcome nor a place in the broker"] == 1
