"""Random stories of a pipeline: runs, crashes, copies, deleted files, rivals, recreated entities.

Whatever the state of checkpoint and broker is, the result is right, or there is an error before
anything is written:

- no row is written twice;
- after a run without an error everything that was sent is there;
- a checkpoint that was only ever used as Spark uses it continues, whatever was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa

from onibus import Message
from onibus.core.errors import OnibusError
from onibus.spark.writing import BatchWriter
from tests.bus_helpers import KEYS
from tests.spark.micro_batches import (
    POINTS,
    SCHEMA,
    Checkpoint,
    Crash,
    Options,
    Query,
    new_checkpoint,
    write_tasks,
)
from tests.spark.served_bus import ServedBus

#: The possible steps, each with its weight.
STEPS = (
    *("send", "send", "send", "run", "run", "run", "run", "meet", "meet", "meet", "save"),
    *("restore", "restore", "back", "lose_commit", "lose_batch", "lose_all", "recreate_target"),
    *("recreate_source", "renew"),
)


class Wrong(AssertionError):
    """A result that is not right, without an error."""


class Story:
    """One pipeline, and what was done to it. What must be there follows from what was sent."""

    def __init__(
        self,
        served: ServedBus,
        seed: int,
        modes: Sequence[str] = ("log", "queue"),
        sinks: Sequence[str] = ("stream", "foreach", "files"),
    ) -> None:
        self.random = Random(seed)
        self.served, self.client = served, served.client
        self.lines: list[str] = []
        self.mode, self.sink = self.random.choice(modes), self.random.choice(sinks)
        self.source, self.target = f"source-{seed}", f"target-{seed}"
        self.spread = self.random.random() < 0.5
        self.producers = self.count = 0
        #: the ids that must be in the result
        self.sent: list[str] = []
        self._create(self.source)
        self._create(self.target)
        self._begin()

    def _create(self, entity: str) -> None:
        self.client.create_queue(entity, enable_partitioning=self.spread)

    def _begin(self) -> None:
        """Begin with a new checkpoint, under another producer's name."""
        self.producers += 1
        self.checkpoint = self._new()
        self.rival = self._new()
        self.copies: list[Checkpoint] = []
        #: the checkpoint that has to continue without an error, if one has to
        self.trusted: Checkpoint | None = self.checkpoint

    def _new(self) -> Checkpoint:
        return new_checkpoint(self.random.randrange)

    def _query(self, producer: str) -> Query:
        options: Options = {**self.served.options, "columns": "message_id,body"}
        source = options | {"entity": self.source, "maxMessagesPerTrigger": "3", "mode": self.mode}
        if self.mode == "queue":
            source["reader"] = "r"
        target = {**self.served.options, "entity": self.target}
        return Query(self.mode, self.sink, source, target, producer)

    # What happens

    def tell(self, steps: int) -> None:
        """Do random things, and look at the result after each."""
        for _ in range(steps):
            name = self.random.choice(STEPS)
            self.lines.append(name)
            getattr(self, name)()
        self.back()
        self.lines.append("the end")
        self.run(cut=False)

    def end(self) -> None:
        for entity in (self.source, self.target):
            self.client.delete_queue(entity)

    def send(self) -> None:
        messages = []
        for _ in range(self.random.randrange(1, 5)):
            self.count += 1
            self.sent.append(f"id-{self.count}")
            key = self.random.choice(KEYS[:3])
            body = b"%d" % self.count
            messages.append(Message(message_id=self.sent[-1], body=body, partition_key=key))
        self.client.send_batch(self.source, messages)
        self.served.clock.advance(self.random.randrange(3))

    def run(self, cut: bool = True, meet: bool = False) -> None:
        """Run the query; perhaps it is killed, or another one runs in the middle of it."""
        point = self.random.choice(POINTS) if cut and self.random.random() < 0.6 else ""
        after = 0 if meet else self.random.randrange(3)
        batches = 0

        def at(passed: str, number: int) -> None:
            nonlocal batches, after
            batches += passed == "done"
            if passed != point:
                return
            after -= 1
            if after < 0 and meet:
                self._run_rival()
            elif after < 0:
                raise Crash

        mine = self.checkpoint
        self.lines.append(f"  {self.mode} {self.sink} to {point or 'the end'} {after}")
        try:
            self._query(f"p{self.producers}").run(mine, at)
        except Crash:
            if mine is not self.trusted:
                self.trusted = None
        except OnibusError as error:
            self.lines.append(f"  {type(error).__name__}: {error}")
            if mine is self.trusted:
                raise Wrong(f"it has to continue: {error}") from error
            if self.mode == "queue":
                # It may have read messages that it could not write: they are its own then.
                self.trusted = None
        else:
            if batches or mine is self.trusted:
                self._check_complete()
                self.trusted = mine
        self._check_unique()

    def meet(self) -> None:
        """Let another query run, under the same names; next to this one, or after it."""
        self.trusted = None
        if self.random.random() < 0.5:
            self.run(meet=True)
        else:
            self._run_rival()
            self._check_unique()

    def _run_rival(self) -> None:
        producer = f"p{self.producers}" if self.mode == "log" else f"rival{self.producers}"
        stop = self.random.choice(("", *POINTS))

        def at(passed: str, number: int) -> None:
            if passed == stop:
                raise Crash

        if self.mode == "log" and self.sink == "files":
            return
        try:
            self._query(producer).run(self.rival, at)
        except Crash:
            self.lines.append(f"  rival to {stop}")
        except OnibusError as error:
            self.lines.append(f"  rival: {type(error).__name__}: {error}")

    def save(self) -> None:
        self.copies.append(self.checkpoint.copy())

    def restore(self) -> None:
        if self.copies:
            self.checkpoint = self.random.choice(self.copies).copy()

    def back(self) -> None:
        if self.trusted is not None:
            self.checkpoint = self.trusted

    def lose_commit(self) -> None:
        """Lose the note that the last batch is done."""
        if self.mode == "queue":
            # Its messages may be completed by now, which no crash leads to.
            self.checkpoint = self.checkpoint.copy()
        self.checkpoint.commits.discard(self.checkpoint.last)

    def lose_batch(self) -> None:
        """Delete the files of the last batch from the checkpoint."""
        self.checkpoint = self.checkpoint.copy()
        last = self.checkpoint.last
        self.checkpoint.offsets.pop(last, None)
        self.checkpoint.commits.discard(last)
        self.checkpoint.output.pop(last, None)

    def lose_all(self) -> None:
        if self.sink != "files":
            self.checkpoint = self._new()

    def recreate_target(self) -> None:
        if self.sink == "files":
            return
        if self.mode == "queue":
            there = set(self._written())
            self.sent = [one for one in self.sent if one not in there]
        self.trusted = None
        self._recreate(self.target)

    def recreate_source(self) -> None:
        self.trusted = None
        self.sent = []
        self._recreate(self.source)

    def renew(self) -> None:
        """Begin again on purpose: with nothing in the target, and all that is in the source."""
        if self.mode == "queue":
            for claim in self.client.claims(self.source):
                self.client.release_claim(self.source, claim.reader, claim.number)
            self.sent = [str(one.message_id) for one in self.client.peek_all(self.source)]
        self._recreate(self.target)
        self._begin()

    def _recreate(self, entity: str) -> None:
        self.client.delete_queue(entity)
        self._create(entity)

    # What must be there

    def _written(self) -> list[str]:
        if self.sink == "files":
            outputs = [*self.checkpoint.output.values(), *self.rival.output.values()]
            return [one for rows in outputs for one in rows]
        return [str(one.message_id) for one in self.client.peek_all(self.target)]

    def _check_unique(self) -> None:
        twice = [one for one, times in Counter(self._written()).items() if times > 1]
        if twice:
            raise Wrong(f"written twice: {twice}")

    def _check_complete(self) -> None:
        missing = set(self.sent) - set(self._written())
        # What another query is at work on will be written by that one.
        if self.rival.offsets and self.mode == "queue":
            missing -= {str(one.message_id) for one in self.client.peek_all(self.source)}
        if missing:
            raise Wrong(f"never written: {sorted(missing)}")


class JobStory:
    """A job that writes numbered batches without a query, and keeps the number with its input."""

    def __init__(self, served: ServedBus, seed: int) -> None:
        self.random = Random(seed)
        self.client = served.client
        self.lines: list[str] = []
        self.options = {**served.options, "entity": f"job-{seed}", "producer": "job"}
        self.client.create_queue(f"job-{seed}")
        self.rows: list[str] = []
        #: the next number, and how many rows are written
        self.state = (0, 0)
        self.copies = [self.state]

    def tell(self, steps: int) -> None:
        """Do random things, and look at the result after each."""
        for _ in range(steps):
            name = self.random.choice(("more", "more", "run", "run", "run", "restore"))
            self.lines.append(name)
            getattr(self, name)()

    def end(self) -> None:
        self.client.delete_queue(self.options["entity"])

    def more(self) -> None:
        self.rows.append(f"id-{len(self.rows)}")

    def restore(self) -> None:
        self.state = self.random.choice(self.copies[-2:])

    def run(self) -> None:
        number, done = self.state
        rows = self.rows[done:]
        self.random.shuffle(rows)
        half = self.random.randrange(len(rows) + 1)
        writer: Any = BatchWriter(self.options | {"batch": str(number)}, SCHEMA, False)
        tasks = [
            pa.record_batch({"message_id": pa.array(part, "string"), "body": [b"x"] * len(part)})
            for part in (rows[:half], rows[half:])
        ]
        tasks = [one.set_column(1, "body", one["body"].cast("binary")) for one in tasks]
        cut = self.random.choice(("", "", "staged", "published"))
        try:
            messages = write_tasks(writer, tasks)
            if cut == "staged":
                return
            writer.commit(messages)
        except OnibusError as error:
            self.lines.append(f"  {type(error).__name__}: {error}")
            return
        there = Counter(str(one.message_id) for one in self.client.peek_all(self.options["entity"]))
        if there != Counter(self.rows):
            raise Wrong(f"{there} is there, and not each of {self.rows} once")
        if not cut:
            self.state = (number + 1, len(self.rows))
            self.copies.append(self.state)
