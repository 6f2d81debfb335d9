"""Plans of replays: whose they are, and what is refused when part of one is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus.api.log import LogPositions
from onibus.core.errors import InvalidOperation, LogGap, PartitionOffline
from onibus.spark.jobs.replay import (
    Chunk,
    LakeSource,
    Plan,
    Selection,
    check_whole,
    keep_plan,
    kept_plan,
    pinned,
)


def ends(earliest: tuple[int | None, ...], latest: tuple[int | None, ...]) -> LogPositions:
    return LogPositions(
        entity="orders", incarnation=1, log="messages", earliest=earliest, latest=latest
    )


def test_a_chunk_is_read_from_its_first_to_its_last_number() -> None:
    chunk = Chunk(5, ((0, 3, 7), (2, 40, 40)))
    # The partition that is not in it is read from its end up to its end.
    assert pinned(chunk, ends((3, 1, 40), (20, 9, 50))) == (
        {0: 3, 1: 9, 2: 40},
        {0: 8, 1: 9, 2: 41},
    )


@pytest.mark.parametrize(("earliest", "lost"), [(4, (3, 3)), (8, (3, 7)), (20, (3, 7))])
def test_what_retention_has_passed_is_named(earliest: int, lost: tuple[int, int]) -> None:
    chunk = Chunk(5, ((0, 3, 7),))
    with pytest.raises(LogGap, match=f"partition 0: messages {lost[0]} to {lost[1]}") as gap:
        pinned(chunk, ends((earliest,), (20,)))
    assert (gap.value.first, gap.value.last) == lost
    with pytest.raises(PartitionOffline):
        pinned(chunk, ends((None,), (None,)))


def test_a_chunk_that_is_short_is_refused() -> None:
    chunk = Chunk(5, ((0, 3, 7), (2, 40, 41)))
    check_whole(chunk, 5)
    for found in (4, 6, 0):
        with pytest.raises(InvalidOperation, match=f"partition 2, 40 to 41, but found {found}:"):
            check_whole(chunk, found)


def meant(selection: Selection, **more: Any) -> dict[str, Any]:
    given = {"source": {"entity": "orders", "incarnation": 1}, "target": "again", "new_ids": False}
    return {**given, "selection": selection.meant(), **more}


def test_two_hours_ago_stays_the_time_it_was(tmp_path: Path) -> None:
    path = tmp_path / "plans" / "mistake.json"
    first = Selection(since="2h", since_ms=1_000, until_ms=9_000)
    assert kept_plan(path, meant(first)) is None
    made = Plan(first, [Chunk(2, ((0, 1, 2), (1, 5, 5))), Chunk(1, ((0, 3, 3),))])
    keep_plan(path, meant(first), made)
    # Started again a minute later.
    later = Selection(since="2h", since_ms=61_000, until_ms=9_000)
    assert kept_plan(path, meant(later)) == made


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (meant(Selection(since="3h", since_ms=1_000)), "selection"),
        (meant(Selection(since_ms=1_000)), "selection"),
        (meant(Selection(since="2h", since_ms=1_000, until_ms=1)), "selection"),
        (meant(Selection(since="2h"), source={"entity": "orders", "incarnation": 2}), "source"),
        (meant(Selection(since="2h"), source={"lake": "/lake"}, target="c"), "source, target"),
        (meant(Selection(since="2h"), new_ids=True), "new_ids"),
    ],
)
def test_the_plan_of_another_replay(tmp_path: Path, other: dict[str, Any], says: str) -> None:
    path = tmp_path / "mistake.json"
    asked = Selection(since="2h", since_ms=1_000)
    keep_plan(path, meant(asked), Plan(asked, [Chunk(1, ((0, 1, 1),))]))
    with pytest.raises(InvalidOperation, match=f"named 'mistake', which differs in {says}: use"):
        kept_plan(path, other)


def test_a_lake_is_known_by_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lake(place: Path | str, entity: str = "orders") -> dict[str, Any]:
        return LakeSource(None, str(place), entity).meant()  # type: ignore[arg-type]

    monkeypatch.chdir(tmp_path)
    assert lake("lake") == lake(tmp_path / "lake")
    assert lake("lake") != lake("other")
    assert lake("lake") != lake("lake", "bills")
