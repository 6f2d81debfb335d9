"""The 1st, 2nd, … nth call to the disk fails, until a run meets no failure (SQLite's own method).

No commit that returned is lost, a failed one poisons the store, and after opening anew what was not
acknowledged is there whole or not at all, also when power fails afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onibus.core.errors import OnibusError, StoreFailed
from onibus.core.records import BLOCKS
from onibus.store.conformance import nothing_works
from onibus.store.sqlite import SqliteStore
from onibus.testing.disk import DiskCall, SimulatedDisk
from tests.simulator.crashes import Lost, Trial

SEED = 7

Order = Callable[[SimulatedDisk], None]


def runs_into(order: Order, commits: int, fates: int, crash: bool) -> bool:
    """Run with one failure ordered; return whether it happened. `fates` seeds what it leaves."""
    trial = Trial(SEED)
    trial.open()
    trial.disk.random.seed(fates)
    order(trial.disk)
    if not trial.run(commits):
        nothing_works(trial.store)
    if crash:
        trial.crash()
    else:
        trial.store.close()
    happened = not trial.disk.call_off()
    trial.open()
    assert trial.run(5), "the store must go on once the disk does"
    trial.crash()
    trial.open()
    assert trial.integrity() == "ok"
    trial.store.close()
    return happened


@pytest.mark.promise("B8", "S3")
@pytest.mark.parametrize("crash", [False, True], ids=["reopened", "power lost"])
@pytest.mark.parametrize(("call", "commits"), [("write", 25), ("sync", 50)])
def test_every_call_of_a_run_fails_once(call: DiskCall, commits: int, crash: bool) -> None:
    nth = 1
    while runs_into(lambda disk: disk.fail_call(call, nth), commits, nth, crash):  # noqa: B023
        nth += 1
    assert nth > commits


@pytest.mark.promise("B8")
@pytest.mark.parametrize("crash", [False, True], ids=["reopened", "power lost"])
def test_every_write_of_a_run_finds_no_space_once(crash: bool) -> None:
    nth = 1
    while runs_into(lambda disk: disk.fill_at_write(nth), 25, nth, crash):  # noqa: B023
        nth += 1
    assert nth > 100


@pytest.mark.promise("B8")
@pytest.mark.parametrize("call", ["read", "write", "sync", "truncate"])
def test_every_call_of_an_opening_fails_once(call: DiskCall) -> None:
    trial = Trial(SEED)
    failures = 0
    for nth in range(1, 200):
        # A crash leaves rows in the log and in the main file, so that opening has work to do.
        trial.open()
        assert trial.run(3)
        trial.crash()
        trial.disk.fail_call(call, nth)
        try:
            trial.open()
        except StoreFailed:
            failures += 1
            trial.open()
        trial.crash()
        if trial.disk.call_off():
            break
    assert failures or call != "read"


@pytest.mark.promise("B8", "P10")
@pytest.mark.parametrize("quiet", [False, True], ids=["log in use", "log moved"])
def test_a_failed_read_is_not_damage_and_passes_with_the_disk(quiet: bool) -> None:
    trial = Trial(SEED, prepare=lambda store: store._writer.pragma("cache_size", 0))
    trial.open()
    assert trial.run(10)
    if quiet:
        trial.store.maintain()
    # Nothing of the file is kept in memory: a quiet store's pages give way to others.
    trial.store._writer.release_memory()
    trial.disk.unreadable = True
    with pytest.raises(StoreFailed):
        list(trial.store.scan(BLOCKS))
    with pytest.raises(StoreFailed):
        trial.commit()
    nothing_works(trial.store)
    trial.store.close()
    with pytest.raises(StoreFailed):
        trial.open()
    trial.disk.unreadable = False
    trial.open()
    assert trial.run(5)
    assert trial.integrity() == "ok"
    trial.store.close()


def commit_until_full(trial: Trial) -> None:
    for _ in range(1000):
        trial.commit()


@pytest.mark.promise("B8")
@pytest.mark.parametrize("seed", range(20))
def test_full_disk_loses_nothing_and_recovers(seed: int) -> None:
    trial = Trial(seed)
    trial.open()
    assert trial.run(5)
    used = sum(len(file.seen) for file in trial.disk.files.values())
    trial.disk.capacity = used + trial.random.randrange(200_000)
    with pytest.raises(StoreFailed):
        commit_until_full(trial)
    nothing_works(trial.store)
    trial.store.close()
    trial.open()
    trial.store.close()
    trial.disk.capacity = None
    trial.open()
    assert trial.run(5)
    trial.crash()
    trial.open()
    assert trial.integrity() == "ok"
    trial.store.close()


def test_control_a_failed_sync_that_is_not_made_good_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why closing overwrites the failed commit: without that, later commits stand behind a hole."""
    monkeypatch.setattr(SqliteStore, "_overwrite_failed_commit", lambda store: None)
    caught = 0
    for nth in range(1, 50):
        try:
            runs_into(lambda disk: disk.fail_call("sync", nth), 50, nth, False)  # noqa: B023
        except (Lost, OnibusError):
            caught += 1
    assert caught > 5
