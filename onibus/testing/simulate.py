"""Run the simulator: `python -m onibus.testing.simulate --seed 7 --commands 100000`.

One seed is one run, in one process. With `--seeds K` the commands are dealt over K seeds, from
`--seed` on, and over the processors. Ends with 1 and the command that replays it where the bus and
its model differ.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from onibus.testing.mismatch import Mismatch
from onibus.testing.workload import run_seed

#: Commands a run of many seeds gives to each: long enough to fill tiers and to crash often.
COMMANDS_A_SEED = 2_000
_TELL_EVERY_S = 5.0


class Figures:
    """What was simulated so far."""

    def __init__(self) -> None:
        self.seeds = self.commands = self.crashes = self.failures = self.simulated_ms = 0
        self.started = time.monotonic()
        self._told = self.started

    def add(self, run: tuple[int, int, int, int]) -> None:
        self.seeds += 1
        commands, crashes, failures, simulated_ms = run
        self.commands += commands
        self.crashes += crashes
        self.failures += failures
        self.simulated_ms += simulated_ms
        if time.monotonic() - self._told > _TELL_EVERY_S:
            self._told = time.monotonic()
            print(self, flush=True)

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        return (
            f"{self.commands:,} commands, {self.seeds:,} seeds, {self.crashes:,} crashes, "
            f"{self.failures:,} store failures, {self.simulated_ms / 86_400_000:.1f} simulated "
            f"days in {seconds:.0f} s ({self.commands / max(seconds, 0.001):,.0f} commands/s)"
        )


def run(task: tuple[int, int]) -> tuple[int, int, int, int]:
    """Run one seed; return its figures."""
    seed, commands = task
    simulation = run_seed(seed, commands)
    return (
        simulation.commands,
        simulation.crashes,
        simulation.failures,
        simulation.clock.monotonic(),
    )


def tasks_of(seed: int, seeds: int, commands: int) -> list[tuple[int, int]]:
    """Deal commands over seeds."""
    share, rest = divmod(commands, seeds)
    return [(seed + at, share + (at < rest)) for at in range(seeds)]


def run_all(tasks: list[tuple[int, int]], processes: int) -> Figures:
    """Run seeds, in several processes where there are several."""
    figures = Figures()
    if processes < 2 or len(tasks) < 2:
        results: Iterable[tuple[int, int, int, int]] = map(run, tasks)
        for result in results:
            figures.add(result)
        return figures
    with ProcessPoolExecutor(processes) as pool:
        for result in pool.map(run, tasks, chunksize=4):
            figures.add(result)
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="onibus.testing.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=1, help="deal the commands over that many")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    try:
        figures = run_all(tasks_of(given.seed, given.seeds, given.commands), given.processes)
    except Mismatch as mismatch:
        print(mismatch, file=sys.stderr)
        return 1
    print(f"no difference between bus and model: {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
