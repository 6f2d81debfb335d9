"""The simulation is worth something: it catches every deliberate mistake."""

from __future__ import annotations

import time

import pytest

from onibus.core.block import ENTRY, HEADER, Block, Entry
from onibus.core.errors import PartitionOffline
from onibus.core.message import Message
from onibus.core.records import BLOCKS
from onibus.gateway import receiving, sending
from onibus.shard.replies import KeptReply
from tests.simulation.mutants import MUTANTS as OF_QUEUES
from tests.simulation.mutants_of_fairness import OF_FAIRNESS
from tests.simulation.mutants_of_holds import OF_HOLDS
from tests.simulation.mutants_of_numbers import OF_NUMBERS
from tests.simulation.mutants_of_time import OF_TIME
from tests.simulation.mutants_of_works import OF_WORKS
from tests.simulation.mutating import Mutant, applied
from tests.simulator.mismatch import Mismatch
from tests.simulator.simulation import Simulation
from tests.simulator.workload import Workload, run_seed

MUTANTS = OF_QUEUES | OF_WORKS | OF_NUMBERS | OF_TIME | OF_HOLDS | OF_FAIRNESS
#: Of the processor, however much else it has to do.
SECONDS = 60.0
COMMANDS = 700


def is_caught(mutant: Mutant) -> bool:
    """Simulate until bus and model differ, or the time is over."""
    started = time.process_time()
    seed = 0
    with applied(mutant):
        while time.process_time() - started < SECONDS:
            seed += 1
            try:
                run_seed(seed, COMMANDS, list(mutant.kinds))
            except Mismatch:
                return True
    return False


def test_there_are_enough() -> None:
    assert len(OF_QUEUES) >= 20
    assert len(OF_WORKS) >= 14
    assert len(OF_TIME) >= 7


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    assert is_caught(MUTANTS[name]), f"the simulation did not notice: {name}"


@pytest.mark.parametrize("kinds", sorted({mutant.kinds for mutant in MUTANTS.values()}))
def test_the_same_run_without_a_mutant_passes(kinds: tuple[str, ...]) -> None:
    run_seed(1, COMMANDS, list(kinds))


def serve_a_flipped_bit() -> None:
    """Flip a bit of a stored message; raise `Mismatch` where it is served as good."""
    simulation = Simulation(1)
    Workload(simulation, ["plain"])
    reply = KeptReply()
    sending.send(simulation.broker, "plain", [Message(body=b"x" * 100)], reply)
    simulation.settle_down()
    simulation.finish_all()
    ((key, row),) = [
        item for tables in simulation.tables.values() for item in tables[BLOCKS].items()
    ]
    payload = bytearray(row[-1])  # type: ignore[arg-type]
    payload[HEADER.size + ENTRY.size + 50] ^= 1
    for tables in simulation.tables.values():
        if key in tables[BLOCKS]:
            tables[BLOCKS][key] = (*row[:-1], bytes(payload))
    simulation.broker = simulation._new_broker()
    simulation.broker.model = simulation.model
    simulation.broker.open()
    received = KeptReply()
    try:
        receiving.receive(simulation.broker, "plain", 1, 0, received, take=True)
    except PartitionOffline:
        return
    raise Mismatch("a flipped bit was served as good")


def test_a_flipped_bit_is_not_served() -> None:
    serve_a_flipped_bit()


def test_skipping_the_checksum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(self: Block, position: int, entry: Entry) -> bytes:
        start = self.entry(position - 1)[4] if position else 0
        return self._payload[self._body + start : self._body + entry[4]]

    def all_stored(self: Block, start: int, end: int) -> list[tuple[Entry, Message]]:
        return [self.stored(position) for position in range(start, end)]

    monkeypatch.setattr(Block, "_row", row)
    monkeypatch.setattr(Block, "all_stored", all_stored)
    with pytest.raises(Mismatch):
        serve_a_flipped_bit()
