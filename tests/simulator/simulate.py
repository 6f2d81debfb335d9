"""Run the simulator: `python -m tests.simulator.simulate --seed 7 --commands 100000`.

A seed is a run, byte for byte: the digest at the end is that of its trace. With `--each N` or
`--seeds K` the commands are dealt over several seeds, from `--seed` on, and over the processors.
Exits with 1 if bus and model differ, and prints the command that replays it. SIGTERM ends a run
with the figures of what was compared by then: of one process, also those of its last seed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from tests.ending import ended_early
from tests.simulator.bounds import upper_bound
from tests.simulator.client_parts import KINDS, TOPICS
from tests.simulator.mismatch import Mismatch
from tests.simulator.simulation import Simulation
from tests.simulator.trace import Write
from tests.simulator.workload import Compared, run_seed

#: Commands a run of many seeds gives to each: long enough to fill tiers and to crash often.
COMMANDS_A_SEED = 2_000
_TELL_EVERY_S = 5.0
_DAY_MS = 86_400_000


class Run(NamedTuple):
    """What one seed did."""

    seed: int
    commands: int = 0
    crashes: int = 0
    failures: int = 0
    simulated_ms: int = 0
    #: of its trace
    digest: str = ""
    #: how bus and model differed; empty if they did not
    mismatch: str = ""


class Figures:
    """What was simulated so far."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.mismatches = 0
        self.started = time.monotonic()
        self._told = self.started
        self._under_way: Run | None = None

    def add(self, run: Run) -> None:
        self._under_way = None
        self.runs.append(run)
        if run.mismatch:
            self.mismatches += 1
            print(run.mismatch, file=sys.stderr, flush=True)
        self._tell()

    def compared(self, simulation: Simulation) -> None:
        """Count what is known of a seed that this process runs."""
        self._under_way = _run_of(simulation)
        self._tell()

    def _tell(self) -> None:
        if time.monotonic() - self._told > _TELL_EVERY_S:
            self._told = time.monotonic()
            print(self, flush=True)

    def _all(self) -> list[Run]:
        return [*self.runs, self._under_way] if self._under_way else self.runs

    @property
    def commands(self) -> int:
        return sum(run.commands for run in self._all())

    @property
    def crashes(self) -> int:
        return sum(run.crashes for run in self._all())

    @property
    def failures(self) -> int:
        return sum(run.failures for run in self._all())

    def digest(self) -> str:
        """Return the digest of the only run, or of those of all runs, by seed."""
        if len(self.runs) == 1:
            return self.runs[0].digest
        lines = [f"{run.seed} {run.digest}\n" for run in sorted(self.runs)]
        return blake2b("".join(lines).encode(), digest_size=16).hexdigest()

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        days = sum(run.simulated_ms for run in self._all()) / _DAY_MS
        return (
            f"{self.commands:,} commands, {len(self._all()):,} seeds, {self.crashes:,} crashes, "
            f"{self.failures:,} store failures, {days:.1f} simulated days, "
            f"{self.mismatches} seeds with a difference, in {seconds:.0f} s "
            f"({self.commands / max(seconds, 0.001):,.0f} commands/s)"
        )


def run(
    task: tuple[int, int],
    kinds: list[str] | None = None,
    write: Write | None = None,
    compared: Compared = lambda simulation: None,
) -> Run:
    """Run one seed; return its figures, or how bus and model differed."""
    seed, commands = task
    try:
        return _run_of(run_seed(seed, commands, kinds, write, compared))
    except Mismatch as mismatch:
        return Run(seed, mismatch=str(mismatch))


def _run_of(simulation: Simulation) -> Run:
    return Run(
        simulation.seed,
        simulation.commands,
        simulation.crashes,
        simulation.failures,
        simulation.clock.passed,
        simulation.trace.digest(),
    )


def tasks_of(seed: int, seeds: int, commands: int) -> list[tuple[int, int]]:
    """Deal commands over seeds."""
    share, rest = divmod(commands, seeds)
    return [(seed + at, share + (at < rest)) for at in range(seeds)]


def run_all(
    tasks: list[tuple[int, int]],
    processes: int,
    kinds: list[str] | None = None,
    write: Write | None = None,
) -> Figures:
    """Run seeds, in several processes if there are several; a difference does not end the rest."""
    figures = Figures()
    if processes < 2 or len(tasks) < 2:
        with ended_early():
            for task in tasks:
                figures.add(run(task, kinds, write, figures.compared))
        return figures
    with ended_early(), ProcessPoolExecutor(processes) as pool:
        under_way = [pool.submit(partial(run, kinds=kinds), task) for task in tasks]
        for future in as_completed(under_way):
            figures.add(future.result())
    return figures


@contextmanager
def _written(path: str | None) -> Iterator[Write | None]:
    if path is None:
        yield None
        return
    with open(path, "w", encoding="utf-8") as file:
        yield file.write


def _kinds(given: str) -> list[str]:
    known = [*KINDS, *TOPICS]
    kinds = known if given == "all" else given.split(",")
    unknown: Iterable[str] = [kind for kind in kinds if kind not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; use {', '.join(known)}")
    return kinds


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="tests.simulator.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--commands", type=int, default=100_000, help="in all (default: 100,000)")
    parser.add_argument("--seeds", type=int, help="deal the commands over that many (default: 1)")
    parser.add_argument("--each", type=int, help="deal that many commands to each seed")
    parser.add_argument("--kinds", type=_kinds, help="entities, or all (default: three by seed)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", help="write every command, answer and commit to this file")
    given = parser.parse_args(arguments)
    seeds = given.seeds or (-(-given.commands // given.each) if given.each else 1)
    tasks = tasks_of(given.seed, seeds, given.commands)
    with _written(given.trace) as write:
        figures = run_all(tasks, 1 if given.trace else given.processes, given.kinds, write)
    if figures.mismatches:
        print(f"bus and model differ: {figures}", file=sys.stderr)
        return 1
    print(f"no difference between bus and model: {figures}, digest {figures.digest()}")
    print(
        f"rate of failure with 95 % confidence (3/n): {upper_bound(figures.commands)} per command"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
