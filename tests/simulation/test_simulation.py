"""A million commands, crashes, clock jumps and store failures among them, against the model."""

from __future__ import annotations

import multiprocessing
import signal

import pytest

from onibus.testing.clock import SimulatedClock
from tests.simulator.mismatch import Mismatch
from tests.simulator.simulate import COMMANDS_A_SEED, Figures, main, run, run_all, tasks_of
from tests.simulator.simulation import replay_of
from tests.simulator.workload import run_seed

COMMANDS = 1_000_000
CHUNKS = 20
SEEDS = COMMANDS // COMMANDS_A_SEED // CHUNKS


@pytest.mark.promise(
    "D1", "D2", "D3", "D4", "D5", "D8", "D9", "D10", "D11",
    "F1", "F2", "F4", "F5", "F6", "F7", "F8", "F9", "F10",
    "P2", "P3", "P4", "P5", "P6", "P7", "P10", "P12", "P13",
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8",
    "L1", "L2", "L3", "L4", "L5", "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B10",
    "D6", "P8", "P9", "P11", "R2", "R3", "R5", "R6", "R7",
    "X1", "X2", "X3", "X4", "X5", "X8", "X9",
)  # fmt: skip
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_bus_and_model_agree(chunk: int) -> None:
    tasks = tasks_of(1 + chunk * SEEDS, SEEDS, COMMANDS // CHUNKS)
    runs = [run(task) for task in tasks]
    assert [one.mismatch for one in runs if one.mismatch] == []
    commands = sum(one.commands for one in runs)
    assert commands == COMMANDS // CHUNKS
    # The faults were among them, and not just a few.
    assert sum(one.crashes for one in runs) > commands // 2_000
    assert sum(one.failures for one in runs) > commands // 5_000


def test_a_failing_seed_tells_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedClock, "advance", lambda self, ms: 1 / 0)
    with pytest.raises(Mismatch, match=r"replay: python -m tests\.simulator\.simulate --seed 5"):
        run_seed(5, 500)


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("dealt", [("--seeds", "2"), ("--each", "150")])
def test_the_command_line(
    dealt: tuple[str, str], processes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seed", "2", "--commands", "300", *dealt, "--processes", processes]) == 0
    told = capsys.readouterr().out
    assert "no difference between bus and model: 300 commands, 2 seeds" in told
    assert f"digest {run_all([(2, 150), (3, 150)], 1).digest()}" in told


@pytest.mark.parametrize(("processes", "method"), [(1, "compared"), (2, "add")])
def test_sigterm_ends_a_run_with_what_was_compared(
    processes: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = getattr(Figures, method)

    def count_and_end(figures: Figures, compared: object) -> None:
        count(figures, compared)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Figures, method, count_and_end)
    before = signal.getsignal(signal.SIGTERM)
    figures = run_all([(seed, 120) for seed in range(100)], processes)
    assert figures.commands == 120
    assert signal.getsignal(signal.SIGTERM) == before
    assert not multiprocessing.active_children()


def test_every_seed_that_fails_is_named_with_its_replay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SimulatedClock, "advance", lambda self, ms: 1 / 0)
    arguments = ["--seed", "5", "--commands", "1000", "--seeds", "2", "--processes", "1"]
    assert main(arguments) == 1
    told = capsys.readouterr().err
    for seed in (5, 6):
        assert f"replay: {replay_of(seed, 0)[:-1]}" in told
    assert "bus and model differ: 0 commands, 2 seeds" in told


def test_how_a_run_is_replayed() -> None:
    assert replay_of(7, 9) == "python -m tests.simulator.simulate --seed 7 --commands 9"
    chosen = "python -m tests.simulator.simulate --seed 7 --commands 9 --kinds plain,news"
    assert replay_of(7, 9, ["plain", "news"]) == chosen


def test_kinds_that_are_not_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--kinds", "plain,none"])
    assert "unknown: none" in capsys.readouterr().err


def test_the_clock_moves_as_told() -> None:
    clock = SimulatedClock(100, 5)
    clock.advance(10)
    clock.jump(-50)
    assert (clock.wall(), clock.monotonic()) == (60, 15)
