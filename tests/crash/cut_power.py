"""Power cuts on the simulated disk, over many seeds: `make cut CUTS=200000 SEED=7`.

A seed is one store that commits, loses power, recovers and continues. Every eighth recovery loses
power, too. After each cut the store holds every acknowledged commit, and of the last one that
failed all or nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

from onibus.core.errors import OnibusError
from onibus.store.sqlite import SqliteStore
from tests.ending import ended_early
from tests.simulator.bounds import upper_bound
from tests.simulator.crashes import Lost, Trial

CUTS_A_SEED = 50
_PRINT_EVERY_S = 5.0


class Run(NamedTuple):
    """What one seed did."""

    seed: int
    cuts: int
    in_recovery: int
    #: commits that returned
    acknowledged: int
    #: what was lost; empty if nothing was
    lost: str = ""


def shake(seed: int, cuts: int = CUTS_A_SEED, synchronous: str = "FULL", files: bool = True) -> Run:
    """Cut the power of one store that often; raise Lost if an acknowledged commit is missing."""

    def prepare(store: SqliteStore) -> None:
        store._writer.pragma("synchronous", synchronous)

    trial = Trial(seed, prepare=prepare, syncing=files)
    done = in_recovery = 0
    try:
        trial.open()
        while done < cuts:
            trial.disk.cut_power_after(trial.random.randrange(1, 60))
            trial.run(trial.random.randrange(1, 12))
            trial.crash()
            done += 1
            if done < cuts and trial.random.random() < 0.125:
                recovered = _cut_recovery(trial)
                done += not recovered
                in_recovery += not recovered
            trial.open()
            if done % 10 == 0:
                assert trial.integrity() == "ok"
        trial.store.close()
    except (AssertionError, OnibusError) as error:
        command = f"make cut CUTS={cuts} SEED={seed}"
        raise Lost(f"seed {seed}: {error}\nagain: {command}") from error
    return Run(seed, done, in_recovery, trial.acknowledged)


def _cut_recovery(trial: Trial) -> bool:
    """Cut the power while the store opens; return whether it was open before that."""
    trial.disk.cut_power_after(trial.random.randrange(1, 8))
    try:
        trial.open()
    except OnibusError:
        recovered = False
    else:
        recovered = True
        trial.store.close()
    trial.disk.restart()
    return recovered


def run(task: tuple[int, int]) -> Run:
    """Run one seed; return its figures, or what was lost."""
    seed, cuts = task
    try:
        return shake(seed, cuts)
    except Lost as lost:
        return Run(seed, 0, 0, 0, str(lost))


def main() -> int:
    """Cut the power as often as the command line says, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=20_000, help="in all (default: 20,000)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    whole, rest = divmod(given.cuts, CUTS_A_SEED)
    shares = [CUTS_A_SEED] * whole + ([rest] if rest else [])
    tasks = [(given.seed + at, share) for at, share in enumerate(shares)]
    begun = printed = time.monotonic()
    runs: list[Run] = []
    with ended_early(), ProcessPoolExecutor(given.processes) as pool:
        for future in as_completed([pool.submit(run, task) for task in tasks]):
            runs.append(future.result())
            if runs[-1].lost:
                print(runs[-1].lost, file=sys.stderr, flush=True)
            if time.monotonic() - printed > _PRINT_EVERY_S:
                printed = time.monotonic()
                cuts, seconds = sum(one.cuts for one in runs), printed - begun
                print(f"{cuts:,} of {given.cuts:,} cuts in {seconds:,.0f} s", flush=True)
    cuts, failed = sum(one.cuts for one in runs), sum(bool(one.lost) for one in runs)
    acknowledged = sum(one.acknowledged for one in runs)
    print(
        f"{cuts:,} power cuts, {sum(one.in_recovery for one in runs):,} of them in recovery, in "
        f"{time.monotonic() - begun:,.0f} s, seeds {given.seed} to {tasks[-1][0]}\n"
        f"acknowledged: {acknowledged:,} commits\nseeds with a lost or half-done commit: {failed}\n"
        f"rate of failure with 95 % confidence (3/n): {upper_bound(cuts)} per cut, "
        f"{upper_bound(acknowledged)} per acknowledged commit "
        f"(n = {cuts:,} and {acknowledged:,})"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
