"""Power fails at any point: what was acknowledged is there, and nothing is there by halves.

A failing seed is printed with the command that runs it again: `make cut`.
"""

from __future__ import annotations

import pytest

from onibus.core.errors import OnibusError
from tests.crash.cut_power import CUTS_A_SEED, shake
from tests.simulator.crashes import Lost, Trial

SHARDS = 20
SEEDS_A_SHARD = 20


@pytest.mark.promise("B8", "S3")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_crashes_lose_nothing(shard: int) -> None:
    first = shard * SEEDS_A_SHARD
    runs = [shake(seed) for seed in range(first, first + SEEDS_A_SHARD)]
    cuts, acknowledged = SEEDS_A_SHARD * CUTS_A_SEED, sum(one.acknowledged for one in runs)
    assert acknowledged > cuts, "power was cut too early to prove anything"
    assert sum(one.in_recovery for one in runs) > 0


@pytest.mark.promise("B8")
@pytest.mark.parametrize("seed", range(6))
def test_crash_at_every_change_of_a_short_run(seed: int) -> None:
    prepared = Trial(seed)
    prepared.open()
    prepared.store.close()
    files = prepared.disk.image()
    change = 0
    while True:
        change += 1
        trial = Trial(seed, files)
        trial.open()
        trial.disk.cut_power_after(change)
        finished = trial.run(8)
        trial.crash()
        trial.open()
        assert trial.integrity() == "ok"
        assert trial.run(2), "the store must go on after the crash"
        trial.crash()
        trial.open()
        trial.store.close()
        if finished:
            break
    assert change > 40


@pytest.mark.parametrize("seed", range(4))
def test_crash_at_every_change_of_a_store_being_created(seed: int) -> None:
    change = 0
    created = False
    while not created:
        change += 1
        trial = Trial(seed)
        trial.disk.cut_power_after(change)
        try:
            trial.open()
            created = True
            trial.store.close()
        except OnibusError:
            pass
        trial.disk.restart()
        trial.open()
        assert trial.integrity() == "ok"
        assert trial.run(3)
        trial.crash()
        trial.open()
        trial.store.close()
    assert change > 20


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_control_without_sync_is_caught(synchronous: str) -> None:
    """The harness can see loss: without a sync before the acknowledgement it must."""
    caught = 0
    for seed in range(20):
        try:
            shake(seed, cuts=20, synchronous=synchronous)
        except Lost:
            caught += 1
    assert caught >= 15


def test_control_without_synced_block_files_is_caught() -> None:
    caught = 0
    for seed in range(20):
        try:
            shake(seed, cuts=20, files=False)
        except Lost:
            caught += 1
    assert caught >= 15
