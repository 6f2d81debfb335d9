"""A new lake begins at the first message, even one completed before the first capture (R9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onibus.spark.lake import MESSAGES, OUTCOMES, Lake
from onibus.spark.lake_reserving import release, reserve, reserve_all
from tests.spark.lake_helpers import Captures, consume, send
from tests.spark.served_bus import ServedBus


@pytest.fixture
def served() -> Iterator[ServedBus]:
    with ServedBus() as served:
        yield served


def captures_of(served: ServedBus, entity: str) -> Captures:
    return Captures(served.options, entity)


@pytest.mark.promise("R9")
@pytest.mark.parametrize("made", ["before", "later"])
def test_messages_completed_before_the_first_capture_are_in_the_lake(
    served: ServedBus, tmp_path: Path, made: str
) -> None:
    if made == "before":
        served.client.create_queue("q")
    served.do(reserve_all(served.bus, str(tmp_path)))
    if made == "later":
        served.client.create_queue("q")
    send(served.client, "q", 1, 3)
    consume(served.client, "q")
    captures = captures_of(served, "q")
    captures.run(tmp_path)
    assert captures.numbers(tmp_path) == [1, 2, 3]
    tables = Lake(str(tmp_path), "q").manifest().tables
    assert (tables[MESSAGES].start, tables[OUTCOMES].start) == ([1], [1])
    names = [one.name for one in served.client.readers("q")]
    assert len(names) == 2, "the lake has its own readers, and the reserved ones are gone"
    assert not any("reserved" in name for name in names)
    # A server that starts again reserves nothing for a lake that has its readers.
    served.do(reserve_all(served.bus, str(tmp_path)))
    assert [one.name for one in served.client.readers("q")] == names


@pytest.mark.promise("R9")
def test_a_command_reserves_once_and_for_its_own_lake(served: ServedBus, tmp_path: Path) -> None:
    served.client.create_queue("q")
    for place in ("one", "one", "two"):
        reserve(served.client, str(tmp_path / place), "q")
    assert len(served.client.readers("q")) == 4
    release(served.client, str(tmp_path / "one"), "q")
    assert {one.address for one in served.client.readers("q")} == {str(tmp_path / "two" / "q")}
    send(served.client, "q", 1, 2)
    consume(served.client, "q")
    captures = captures_of(served, "q")
    captures.run(tmp_path / "two")
    assert captures.numbers(tmp_path / "two") == [1, 2]
