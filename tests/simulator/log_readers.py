"""Seeded readers of the log: what a named reader has not passed is there, row for row (R2, R3)."""

from __future__ import annotations

from typing import Any

from onibus.core.errors import (
    EntityExists,
    EntityNotFound,
    LogGap,
    OnibusError,
    PartitionOffline,
    Unknown,
)
from onibus.directory import readers
from onibus.directory.named_reader import MESSAGES
from onibus.gateway.reading import LogReading
from onibus.shard.replies import KeptReply
from tests.simulator.claimers import Claimers
from tests.simulator.mismatch import check, same
from tests.simulator.model_parts import EntityModel, Op

#: What may be answered while something is down, or after an answer that got lost.
FAULTS = {PartitionOffline, Unknown, EntityExists, EntityNotFound}


class NamedReader:
    """A named reader and its position in each partition, as sequence numbers."""

    def __init__(self, entity: EntityModel, name: str, positions: list[int]) -> None:
        self.entity, self.name, self.positions = entity, name, positions


class LogReaders(Claimers):
    """Draws what readers of logs do."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.readers: list[NamedReader] = []

    def make_reader(self) -> None:
        """Make a named reader, from the first complete row on or from the latest."""
        sim, name = self.sim, self.random.choice(self.targets)
        reader = f"n{self.random.randrange(3)}"
        start = self.random.choice((readers.EARLIEST, readers.LATEST))

        def expect(op: Op) -> None:
            entity = sim.model.find(name)
            op.tolerated |= FAULTS

            def audit(told: Any) -> None:
                if sim.model.entities.get(name) is not entity:
                    return
                for index, (number, part) in enumerate(
                    zip(told.positions, entity.parts, strict=True)
                ):
                    if sim.model.online(entity, index):
                        # (the counter may have skipped the number since)
                        there = part.hole or part.ordinal_of(number) is not None
                        check(bool(there), f"{op.words}: at {number}")
                self.readers.append(NamedReader(entity, reader, list(told.positions)))

            op.audit = audit

        sim.do(
            f"make reader {name} {reader} {start}",
            lambda reply: readers.create(sim.broker, name, reader, MESSAGES, start, None, reply),
            expect,
        )

    def use_reader(self) -> None:
        """Read on from where a reader is, move it, or remove it."""
        if not self.readers:
            return
        place = self.random.randrange(len(self.readers))
        reader = self.readers[place]
        if self.sim.model.entities.get(reader.entity.name) is not reader.entity:
            del self.readers[place]
        elif self.random.random() < 0.1:
            del self.readers[place]
            self._ask("remove", reader, lambda reply: readers.delete(
                self.sim.broker, reader.entity.name, reader.name, reply))  # fmt: skip
        else:
            self._read_log(reader)

    def _ask(self, verb: str, reader: NamedReader, ask: Any) -> None:
        def expect(op: Op) -> None:
            op.tolerated |= FAULTS
            op.audit = lambda told: None

        self.sim.do(f"{verb} reader {reader.entity.name} {reader.name}", ask, expect)

    def _read_log(self, reader: NamedReader) -> None:
        """Every row from a reader's position on is there, in order, as it was stored."""
        sim, entity = self.sim, reader.entity
        index = self.random.randrange(len(entity.parts))
        if not sim.model.online(entity, index):
            return
        part, start = entity.parts[index], reader.positions[index]
        first = part.ordinal_of(start)
        if first is None or first > part.shown:
            # Where it was made counted on what a store then lost before it was durable.
            return
        before = (part.history[ordinal][0] for ordinal in range(1, first))
        if first < part.hole or (first == part.hole and start in before):
            # The counter has skipped numbers since, and may have come to this one again. Which of
            # the two places the bus takes depends on whether it has committed that it skipped.
            self.readers.remove(reader)
            return
        words = f"read {entity.name} {index} from {start} as {reader.name}"
        sim.step(words)
        rows: list[tuple[int, bytes]] = []
        try:
            reading = LogReading(sim.broker, entity.name, index, entity.uid)
            reading.between(start, None, None, None)
            while (found := self._slice(words, reading)) is not None:
                rows += found
        except LogGap as error:
            # The log has no rows for skipped numbers.
            check(first == part.hole, f"{words}: {error!r}")
            return
        except OnibusError as error:
            check(False, f"{words}: {error!r}")
        same(words, rows, [part.history[ordinal] for ordinal in range(first, part.shown)])
        if rows and self.random.random() < 0.5:
            partition = sim.broker.find(entity.name).partitions[index].online()
            reader.positions[index] = partition.numbering.number(reading.position)
            positions = list(reader.positions)
            self._ask("move", reader, lambda reply: readers.move(
                sim.broker, entity.name, reader.name, positions, entity.uid, reply
            ))  # fmt: skip

    def _slice(self, words: str, reading: LogReading) -> list[tuple[int, bytes]] | None:
        """Return the next rows: their numbers and bodies."""
        reply = KeptReply()
        number = reading.partition.online().numbering.number

        def make(found: list[Any]) -> list[tuple[int, bytes]]:
            return [
                (number(block.entry(at)[0]), block.message(at).body)
                for block, start, end in found
                for at in range(start, end)
            ]

        reading.next_slice(make, reply)
        while self.sim.soon and not reply.done():
            self.sim.soon.popleft()()
        check(reply.done(), f"{words}: no answer")
        if reply.error is not None:
            raise reply.error
        found: list[tuple[int, bytes]] | None = reply.value
        return found
