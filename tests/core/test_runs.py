"""Runs of ordinals against a plain set."""

from __future__ import annotations

import random

import pytest

from onibus.core.runs import Runs, as_runs, spans_of


def check(runs: Runs, model: set[int]) -> None:
    """The runs hold what the model holds, as few runs as possible."""
    assert list(runs.ordinals()) == sorted(model)
    assert (runs.count, bool(runs)) == (len(model), bool(model))
    pairs = list(zip(runs.firsts, runs.lasts, strict=True))
    assert pairs == as_runs(list(model)), "neighbours are one run"


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_work_gives_what_a_set_gives(seed: int) -> None:
    chance = random.Random(seed)
    runs, model = Runs(), set[int]()
    for _ in range(600):
        first = chance.randrange(1, 120)
        last = min(first + chance.choice((0, 0, 1, 5)), 119)
        choice = chance.random()
        if choice < 0.5 and not model & set(range(first, last + 1)):
            run_first, run_last, swallowed = runs.add(first, last)
            assert (swallowed in model) == (swallowed != -1)
            model |= set(range(first, last + 1))
            assert set(range(run_first, run_last + 1)) <= model
            assert run_first - 1 not in model and run_last + 1 not in model  # noqa: PT018
        elif choice < 0.8:
            assert runs.remove(first) == (first in model)
            model.discard(first)
        elif choice < 0.9:
            limit, below = chance.randrange(1, 10), chance.randrange(1, 130)
            expected = sorted(o for o in model if o < below)[:limit]
            assert runs.take(limit, below) == expected
            model -= set(expected)
        else:
            between = {o for o in model if first <= o <= last}
            assert runs.overlap(first, last) == len(between)
            assert (first in runs) == (first in model)
            outside = runs.next_outside(first)
            assert outside not in model and set(range(first, outside)) <= model  # noqa: PT018
            assert list(runs.ordinals(first)) == sorted(o for o in model if o >= first)
        check(runs, model)


def test_a_run_between_two_others_joins_them() -> None:
    runs = Runs()
    assert runs.add(1, 3) == (1, 3, -1)
    assert runs.add(7, 9) == (7, 9, -1)
    assert runs.add(4, 6) == (1, 9, 7)
    assert (list(runs.firsts), list(runs.lasts)) == ([1], [9])


def test_a_million_untouched_ordinals_are_one_pair() -> None:
    runs = Runs()
    for first in range(1, 1_000_001, 1_000):
        runs.add(first, first + 999)
    assert (runs.count, len(runs.firsts)) == (1_000_000, 1)
    assert runs.take(3, 1_000_001) == [1, 2, 3]


def test_as_runs() -> None:
    assert as_runs([]) == []
    assert as_runs([5]) == [(5, 5)]
    assert as_runs([3, 1, 2]) == [(1, 3)]
    assert as_runs([9, 1, 3, 2, 8]) == [(1, 3), (8, 9)]


@pytest.mark.parametrize("count", [1, 7, 100, 2_000])
@pytest.mark.parametrize("seed", range(10))
def test_spans_of_a_block_are_its_runs_and_its_gaps(seed: int, count: int) -> None:
    chance = random.Random(seed)
    share = chance.choice((0.02, 0.5, 0.9, 1.0))
    runs, gone, taken = Runs(), Runs(), set[int]()
    first = 5
    for _ in range(3):
        positions = [at for at in range(count) if chance.random() < share]
        spans, gaps = spans_of(positions, count)
        runs.extend_by(spans, first, len(positions))
        gone.extend_by(gaps, first, count - len(positions))
        taken |= {first + at for at in positions}
        first += count
    check(runs, taken)
    check(gone, set(range(5, first)) - taken)
