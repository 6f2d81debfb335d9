"""Lakes do not affect each other, and name what they miss (R9); without a JVM."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from onibus.cli import exits
from onibus.cli.main import app
from onibus.cli.pipeline import without_digits
from onibus.client import Client
from onibus.core.errors import EntityReplaced, InvalidArgument, LogGap, ReaderTaken
from onibus.spark.jobs.capture import Captured
from onibus.spark.lake import MESSAGES, OUTCOMES, Lake, tables_of
from onibus.spark.lake_capture import LakeCapture, has_news
from onibus.spark.lake_files import LakeBusy, LakeDamaged, LakeFailed
from onibus.spark.lake_reporting import reader_name
from onibus.spark.lake_writer import LakeWriter
from tests.client.server_helpers import ServerThread
from tests.spark.lake_helpers import (
    Captures,
    Crash,
    consume,
    data_files,
    make_old,
    send,
    wait_until_gone,
)


@pytest.fixture
def own_server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


@pytest.fixture
def bus(own_server: ServerThread) -> Iterator[Client]:
    with own_server.client() as client:
        client.create_queue("q")
        yield client


@pytest.fixture
def captures(own_server: ServerThread, bus: Client) -> Captures:
    return Captures(own_server.connection_string, "q")


@pytest.mark.promise("R9")
def test_a_second_lake_has_all_that_can_be_read_and_the_first_misses_nothing(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    send(bus, "q", 1, 5)
    captures.run(one)
    send(bus, "q", 6, 8)
    # The first five are still waiting to be received: a second lake has them as well.
    captures.run(two)
    consume(bus, "q")
    send(bus, "q", 9, 10)
    captures.run(two)
    consume(bus, "q")
    captures.run(one)
    assert captures.numbers(one) == captures.numbers(two) == list(range(1, 11))
    assert len({captures.lake(place).identity() for place in (one, two)}) == 2
    three = tmp_path / "three"
    wait_until_gone(bus, "q", 11)
    captures.run(three)
    send(bus, "q", 11, 12)
    captures.run(three)
    assert captures.lake(three).manifest().tables[MESSAGES].start == [11]
    assert captures.numbers(three) == [11, 12]


@pytest.mark.promise("R9")
def test_a_hole_is_named_before_anything_is_written_and_recorded_on_demand(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, "q", 1, 5)
    captures.run(tmp_path)
    lake = captures.lake(tmp_path)
    for reader in bus.readers("q"):
        bus.delete_reader("q", reader.name)
    send(bus, "q", 6, 9)
    consume(bus, "q")
    wait_until_gone(bus, "q", 10)
    send(bus, "q", 10, 10)
    with pytest.raises(LogGap, match=r"messages 6 to 9 .* are no longer retained") as gap:
        captures.run(tmp_path)
    assert (gap.value.first, gap.value.last) == (6, 9)
    assert captures.numbers(tmp_path) == [1, 2, 3, 4, 5]
    captures.run(tmp_path, accept_gap=True)
    assert captures.numbers(tmp_path) == [1, 2, 3, 4, 5, 10]
    [accepted] = lake.manifest().tables[MESSAGES].gaps
    assert (accepted.partition, accepted.first, accepted.last) == (0, 6, 9)
    captures.run(tmp_path)


@pytest.mark.promise("R9")
def test_a_copied_lake_is_refused_until_it_has_its_own_identity(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    send(bus, "q", 1, 3)
    captures.run(original)
    shutil.copytree(original, copy)
    send(bus, "q", 4, 6)
    captures.run(original)
    with pytest.raises(ReaderTaken, match=rf"copy.* belongs to {original}.*--new-identity"):
        captures.run(copy)
    assert captures.numbers(copy) == [1, 2, 3]
    captures.run(copy, new_identity=True)
    send(bus, "q", 7, 9)
    consume(bus, "q")
    for place in (copy, original):
        captures.run(place)
        assert captures.numbers(place) == list(range(1, 10))


@pytest.mark.promise("R9")
def test_a_moved_lake_continues_under_its_new_address(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, "q", 1, 3)
    captures.run(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    send(bus, "q", 4, 6)
    captures.run(tmp_path / "new")
    assert captures.numbers(tmp_path / "new") == [1, 2, 3, 4, 5, 6]
    assert {one.address for one in bus.readers("q")} == {str(tmp_path / "new" / "q")}


@pytest.mark.promise("R9")
def test_a_name_in_another_case_has_the_same_lake(
    own_server: ServerThread, captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, captures.entity, 1, 2)
    other = Captures(own_server.connection_string, captures.entity.upper())
    other.run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [captures.entity]
    send(bus, captures.entity, 3, 4)
    captures.run(tmp_path)
    # A folder that an earlier version named as the user did stays.
    (tmp_path / captures.entity).rename(tmp_path / captures.entity.upper())
    send(bus, captures.entity, 5, 6)
    captures.run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [captures.entity.upper()]
    for one in (captures, other):
        assert one.numbers(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_queue_with_the_longest_name_is_captured(
    own_server: ServerThread, bus: Client, tmp_path: Path
) -> None:
    name = "/".join(["q" * 86, "r" * 86, "s" * 86])
    bus.create_queue(name)
    send(bus, name, 1, 2)
    captures = Captures(own_server.connection_string, name)
    captures.run(tmp_path)
    assert captures.numbers(tmp_path) == [1, 2]


def test_the_lake_and_not_its_reader_says_whether_there_is_news(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    lake, tables = captures.lake(tmp_path), tables_of("q")
    assert has_news(bus, lake, tables)
    send(bus, "q", 1, 3)
    captures.run(tmp_path)
    assert not has_news(bus, lake, tables)
    send(bus, "q", 4, 4)
    identity = lake.identity()
    assert identity is not None
    # Another program has moved the reader: the lake still lacks the row.
    bus.delete_reader("q", reader_name(identity, MESSAGES))
    bus.create_reader("q", reader_name(identity, MESSAGES), start="latest")
    assert has_news(bus, lake, tables)
    captures.run(tmp_path)
    assert captures.numbers(tmp_path) == [1, 2, 3, 4]


@pytest.mark.promise("R9")
def test_a_batch_that_was_cut_off_leaves_nothing_that_counts(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, "q", 1, 20)
    with pytest.raises(Crash):
        captures.run(tmp_path, crash="written", most=4)
    assert captures.numbers(tmp_path) == []
    # Cut otherwise than before: files of two ways to cut must not count together.
    captures.run(tmp_path, most=7)
    assert captures.numbers(tmp_path) == list(range(1, 21))
    assert len(data_files(tmp_path / "q" / MESSAGES)) == 4
    assert len(captures.lake(tmp_path).files(MESSAGES)) == 3
    # The file that never counted goes when it is old.
    make_old(tmp_path)
    captures.run(tmp_path)
    assert data_files(tmp_path / "q" / MESSAGES) == [
        one.name.rpartition("/")[2] for one in captures.lake(tmp_path).files(MESSAGES)
    ]


@pytest.mark.promise("R9")
@pytest.mark.parametrize("lost", ["entity.json", "_manifest", "messages"])
def test_a_lake_that_lost_a_file_is_an_error_before_anything_is_written(
    captures: Captures, bus: Client, tmp_path: Path, lost: str
) -> None:
    send(bus, "q", 1, 5)
    captures.run(tmp_path)
    path = tmp_path / "q" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = {one.name for one in (tmp_path / "q").rglob("*") if one.is_file()}
    send(bus, "q", 6, 6)
    with pytest.raises(LakeFailed, match=r"(?i)restore"):
        captures.run(tmp_path)
    after = {one.name for one in (tmp_path / "q").rglob("*.parquet")}
    assert after == {name for name in before if name.endswith(".parquet")}


@pytest.mark.promise("R8", "R9")
def test_a_lake_has_nothing_of_a_namesake(captures: Captures, bus: Client, tmp_path: Path) -> None:
    send(bus, "q", 1, 2)
    captures.run(tmp_path)
    bus.delete_queue("q")
    bus.create_queue("q")
    send(bus, "q", 1, 2)
    with pytest.raises(EntityReplaced, match="capture into another lake"):
        captures.run(tmp_path)
    assert captures.numbers(tmp_path) == [1, 2]


class Clock:
    """A clock that moves when a writer waits."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def held(captures: Captures, place: Path, clock: Clock, wait_s: float) -> LakeWriter:
    return LakeWriter(
        captures.lake(place), wait_s=wait_s, lease_s=30, now=clock.now, sleep=clock.sleep
    )


@pytest.mark.promise("R9")
def test_a_second_writer_is_refused_and_a_killed_one_blocks_for_its_lease(
    captures: Captures, tmp_path: Path
) -> None:
    clock = Clock()
    # It is never left, as by a process that was killed.
    killed = held(captures, tmp_path, clock, 0)
    killed._take()
    with pytest.raises(LakeBusy, match=r"process \d+ on .* writes .*: wait until it ends"):
        held(captures, tmp_path, clock, 20)._take()
    assert clock.at == pytest.approx(1_020)
    second = held(captures, tmp_path, clock, 20)
    second._take()
    assert clock.at == pytest.approx(1_030)
    with pytest.raises(LakeBusy, match="took over"):
        killed.commit(tables={})
    second.commit(tables={})
    second.commit(tables={})
    # Its number is free again, since the second keeps its newest version only.
    with pytest.raises(LakeBusy, match="took over"):
        killed.commit(tables={})
    assert captures.lake(tmp_path).manifest() == second.manifest


@pytest.mark.promise("R9")
def test_a_lease_from_a_wrong_clock_blocks_no_longer(captures: Captures, tmp_path: Path) -> None:
    ahead, clock = Clock(), Clock()
    ahead.at += 86_400
    held(captures, tmp_path, ahead, 0)._take()
    held(captures, tmp_path, clock, 31)._take()
    assert clock.at == pytest.approx(1_030)


@pytest.mark.promise("R9")
def test_a_writer_that_was_taken_over_in_the_middle_of_a_batch_commits_nothing(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, "q", 1, 10)
    batches = 0

    def taken_over(done: object) -> None:
        # The lease has expired while the first one was suspended.
        nonlocal batches
        batches += 1
        clock = Clock()
        clock.at = time.time() + 60
        with held(captures, tmp_path, clock, 0) as other:
            other.commit(tables=other.manifest.tables)

    with pytest.raises(LakeBusy, match="took over"):
        captures.run(tmp_path, most=5, on_progress=taken_over)
    assert batches == 1
    captures.run(tmp_path)
    assert captures.numbers(tmp_path) == list(range(1, 11))


@pytest.mark.promise("R9")
def test_a_writer_that_was_taken_over_before_its_first_batch_removes_no_files(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    captures.run(tmp_path)
    send(bus, "q", 1, 10)
    with LakeWriter(captures.lake(tmp_path), wait_s=0) as first:
        captures.lake(tmp_path).store.delete_folder("_lease")
        captures.run(tmp_path)
        suspended = LakeCapture(bus, first, [MESSAGES])
        with pytest.raises((ReaderTaken, LakeBusy)):
            suspended.prepare()
    assert captures.numbers(tmp_path) == list(range(1, 11))


@pytest.mark.promise("R4", "R9")
def test_small_files_are_merged_and_outcomes_are_captured(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    send(bus, "q", 1, 1)
    captures.run(tmp_path)
    send(bus, "q", 2, 40)
    consume(bus, "q")
    done = captures.run(tmp_path, most=4)
    assert (done.messages, done.outcomes) == (39, 40)
    assert done.merged > 10
    assert len(captures.lake(tmp_path).files(MESSAGES)) == 1
    assert captures.numbers(tmp_path) == captures.numbers(tmp_path, OUTCOMES) == list(range(1, 41))
    # Readers that began before may still need the others.
    assert len(data_files(tmp_path / "q" / MESSAGES)) == 12


def test_an_error_of_a_lake_is_recognised_in_the_next_round(
    captures: Captures, tmp_path: Path
) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "_lease").write_text("a file where a folder must be", "utf-8")
    said = []
    for _ in range(2):
        with pytest.raises(LakeFailed, match="cannot write") as failed:
            captures.run(tmp_path)
        said.append(without_digits(str(failed.value)))
    assert said[0] == said[1]


@pytest.mark.promise("R9")
def test_files_that_only_workers_see_do_not_count(
    captures: Captures, bus: Client, tmp_path: Path
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    send(bus, "q", 1, 3)
    with pytest.raises(LakeFailed, match=r"does not see it. Nothing was committed: .* share"):
        captures.run(here, written_to=elsewhere)
    assert captures.numbers(here) == []
    consume(bus, "q")
    captures.run(here)
    assert captures.numbers(here) == [1, 2, 3], "the broker has kept the rows"


@pytest.mark.promise("R9")
@pytest.mark.parametrize("restored", [False, True])
def test_a_lake_that_is_deleted_or_restored_while_it_is_captured(
    captures: Captures, bus: Client, tmp_path: Path, restored: bool
) -> None:
    lake, copy = tmp_path / "lake", tmp_path / "copy"
    begun: list[str] = []

    def told(done: Captured) -> None:
        if not begun and done.messages:
            begun.append("copied")
            shutil.copytree(lake, copy)
        elif begun == ["copied"] and done.messages == 4:
            # Other programs see the copy; the capture continues with what it knows.
            begun.append("replaced")
            shutil.rmtree(lake)
            if restored:
                shutil.copytree(copy, lake)

    send(bus, "q", 1, 6)
    with pytest.raises((LakeFailed, LakeBusy)):
        captures.run(lake, most=2, on_progress=told)
    assert begun == ["copied", "replaced"]
    if restored:
        # The reader is ahead of the lake, and what the lake lacks is still in the queue.
        assert captures.numbers(lake) == [1, 2]
        captures.run(lake)
        assert captures.numbers(lake) == [1, 2, 3, 4, 5, 6]
    else:
        # The files of the batch under way: whether they are all that is left, Onibus cannot know.
        with pytest.raises(LakeFailed, match="move that folder away"):
            captures.run(lake)
        shutil.rmtree(lake)
        captures.run(lake)
        assert captures.numbers(lake) == [1, 2, 3, 4, 5, 6], "the queue still has all of them"


def test_tasks_get_the_whole_path_of_a_lake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Lake("lake", "q").place == str(tmp_path / "lake")


@pytest.mark.promise("R9")
def test_a_changed_file_is_not_merged(captures: Captures, bus: Client, tmp_path: Path) -> None:
    """The merged file would get its own digest, and hide the change."""
    for at in range(1, 10):
        send(bus, "q", at, at)
        captures.run(tmp_path, file_size=1)
    path = tmp_path / "q" / captures.lake(tmp_path).files(MESSAGES)[3].name
    content = path.read_bytes()
    path.write_bytes(with_another_body(content))
    with pytest.raises(LakeDamaged, match=r"missing or was changed: it has messages 4 to 4"):
        captures.run(tmp_path)
    path.write_bytes(content)
    assert captures.run(tmp_path).merged == 9
    assert captures.numbers(tmp_path) == list(range(1, 10))


def with_another_body(content: bytes) -> bytes:
    """Return a file of one message with one byte changed, which changes only its body."""
    whole = pq.read_table(pa.BufferReader(content))
    for at in range(4, len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        try:
            found = pq.read_table(pa.BufferReader(changed))
        except (pa.ArrowException, OSError):
            continue
        same = found.drop_columns("body").equals(whole.drop_columns("body"))
        if same and not found.equals(whole):
            return changed
    raise AssertionError("no byte changes the body alone")


def change(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def changed(tables: dict[str, Any]) -> None:
        tables[MESSAGES][name] = value

    return changed


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "without a start": change("start", []),
    "without an end": change("next", []),
    "two partitions": change("next", [4, 4]),
    "a gap elsewhere": change("gaps", [{"partition": 7, "first": 1, "last": 2, "accepted_ms": 1}]),
    "another table": lambda tables: tables.update(other=tables[MESSAGES]),
    "without a table": lambda tables: tables.pop(MESSAGES),
}


def test_a_capture_that_cannot_begin_leaves_no_lease(
    captures: Captures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise LakeFailed("no space left")

    monkeypatch.setattr(Lake, "put_manifest", fail)
    with pytest.raises(LakeFailed, match="no space left"):
        captures.run(tmp_path)
    assert not list((tmp_path / "q" / "_lease").iterdir())


@pytest.mark.parametrize("which", CHANGES)
def test_a_manifest_that_a_user_changed(
    captures: Captures, bus: Client, tmp_path: Path, which: str
) -> None:
    send(bus, "q", 1, 3)
    captures.run(tmp_path)
    [path] = (tmp_path / "q" / "_manifest").iterdir()
    manifest = json.loads(path.read_bytes())
    CHANGES[which](manifest["tables"])
    path.write_text(json.dumps(manifest))
    log = captures.lake(tmp_path).log(MESSAGES).version
    send(bus, "q", 4, 5)
    with pytest.raises(LakeDamaged, match="restore"):
        captures.run(tmp_path)
    assert captures.lake(tmp_path).log(MESSAGES).version == log


def test_files_of_a_user_among_manifests(captures: Captures, bus: Client, tmp_path: Path) -> None:
    """A capture ignores other names, and rejects a copy under another version."""
    send(bus, "q", 1, 3)
    captures.run(tmp_path)
    folder = tmp_path / "q" / "_manifest"
    [path] = folder.iterdir()
    (folder / "old.json").write_text("{}")
    (folder / f"{path.stem}_copy.json").write_bytes(path.read_bytes())
    send(bus, "q", 4, 5)
    captures.run(tmp_path)
    assert captures.numbers(tmp_path) == list(range(1, 6))
    newest = max(one for one in folder.iterdir() if one.stem.isdigit())
    (folder / f"{int(newest.stem) + 7:019}.json").write_bytes(newest.read_bytes())
    with pytest.raises(LakeDamaged, match="was changed: restore it"):
        captures.run(tmp_path)


@pytest.mark.promise("R9")
def test_a_message_that_ends_while_a_lake_begins(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcomes are kept from before the first message that is kept."""
    send(bus, "q", 1, 3)
    create = Client.create_reader

    def create_and_end(self: Client, entity: str, *given: Any, **named: Any) -> Any:
        found = create(self, entity, *given, **named)
        consume(bus, "q")
        return found

    monkeypatch.setattr(Client, "create_reader", create_and_end)
    captures.run(tmp_path)
    monkeypatch.undo()
    send(bus, "q", 4, 5)
    captures.run(tmp_path)
    ended = captures.numbers(tmp_path, OUTCOMES)
    assert len(ended) >= len([one for one in captures.numbers(tmp_path) if one <= 3])


def test_a_subscription_without_outcomes(captures: Captures, bus: Client, tmp_path: Path) -> None:
    """Its messages are those of its topic."""
    bus.create_topic("t")
    bus.create_subscription("t", "s")
    of_subscription = Captures(captures.options.server, "t/subscriptions/s")
    with pytest.raises(InvalidArgument, match="are those of its topic"):
        of_subscription.run(tmp_path, outcomes=False)
    assert not list(tmp_path.iterdir())
    bus.delete_topic("t")


@pytest.mark.promise("R9")
def test_a_lake_in_the_folder_of_an_entity(captures: Captures, bus: Client, tmp_path: Path) -> None:
    """The captures of the outer lake delete what they do not know in a table."""
    send(bus, "q", 1, 3)
    captures.run(tmp_path)
    for inside in (tmp_path / "q", tmp_path / "q" / MESSAGES, tmp_path / "q" / MESSAGES / "mine"):
        with pytest.raises(InvalidArgument, match=f"use {tmp_path}, or another folder"):
            captures.run(inside)
    assert not list((tmp_path / "q" / MESSAGES).glob("*/entity.json"))
    captures.run(tmp_path / "other")


def test_options_for_one_entity_are_not_ignored(own_server: ServerThread) -> None:
    for given in (
        ("--body", "json"), ("--no-outcomes",), ("--on-error", "suspend"),
        ("--messages-per-batch", "5"), ("--accept-gap",), ("--new-identity",),
    ):  # fmt: skip
        words = ["pipeline", "capture", "--all", *given, "--connect", own_server.connection_string]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == exits.USAGE, done.output
        assert f"{given[0]} cannot be used" in done.output
