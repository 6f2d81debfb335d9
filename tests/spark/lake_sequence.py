"""A random sequence of captures of one queue into lakes: crashes, copies, losses, second writers.

A lake is right, or a capture says what is wrong:

- a lake has each row from its start to its end once, except in the gaps that were accepted;
- a new lake starts at the earliest row that can be read;
- a copy, and a lake whose copy was captured, get an error before they move a reader;
- a second writer is refused, or takes over, and then the first writer commits nothing more.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from onibus.client import Client
from onibus.core.errors import EntityReplaced, LogGap, OnibusError, ReaderTaken
from onibus.core.message import Message
from onibus.spark.jobs.capture import Captured
from onibus.spark.lake import MESSAGES, OUTCOMES, tables_of
from onibus.spark.lake_files import LakeBusy, LakeFailed
from onibus.spark.lake_reporting import reader_name
from tests.spark.lake_helpers import Captures, Crash, consume, wait_until_gone

STEPS = 9


class Sequence:
    """One queue, its lakes, and what was sent."""

    def __init__(self, client: Client, connection: str, name: str, place: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self._client, self._name, self._place = client, name, place
        self._captures = Captures(connection, name)
        #: by incarnation: the body of each number
        self._sent: dict[int, dict[int, bytes]] = {}
        self._lakes: dict[str, int] = {}
        #: by identity: the lakes that know the tokens of its readers
        self._holders: dict[str, set[str]] = {}
        self.create()

    def create(self) -> None:
        self._client.create_queue(self._name)
        self._incarnation = self._client.log_positions(self._name).incarnation
        self._sent[self._incarnation] = {}

    def run(self) -> None:
        """Do random things, and look at the lakes after each."""
        steps = [self.send, self.send, self.consume, self.copy, self.lose_file]
        steps += [self.lose_reader, self.lose_rows]
        for _ in range(STEPS):
            self.random.choice([*steps, *[self.capture] * 4, self.recreate])()
        for lake in [*self._lakes]:
            self.capture(lake)

    def send(self) -> None:
        bodies = [b"%d" % self.random.randrange(1_000) for _ in range(self.random.randint(1, 4))]
        sent = self._client.send_batch(self._name, [Message(body=body) for body in bodies])
        for one, body in zip(sent, bodies, strict=True):
            self._sent[self._incarnation][one.sequence_number] = body

    def consume(self) -> None:
        consume(self._client, self._name)

    def recreate(self) -> None:
        if self.random.random() < 0.2:
            self._client.delete_queue(self._name)
            self.create()

    def lose_reader(self) -> None:
        for reader in self._client.readers(self._name):
            if self.random.random() < 0.5:
                self._client.delete_reader(self._name, reader.name)

    def lose_rows(self) -> None:
        """Lose all readers, and with them the rows that were received."""
        for reader in self._client.readers(self._name):
            self._client.delete_reader(self._name, reader.name)
        self.consume()
        wait_until_gone(self._client, self._name, max(self._sent[self._incarnation], default=0) + 1)

    def copy(self) -> None:
        """Copy a lake over another, or over what it will be: a copy, or a restored backup."""
        if self._lakes:
            one, other = self.random.choice([*self._lakes]), self.random.choice("abc")
            if one != other:
                shutil.rmtree(self._place / other, ignore_errors=True)
                shutil.copytree(self._place / one, self._place / other)
                self._lakes[other] = self._lakes[one]
                for holders in self._holders.values():
                    (holders.add if one in holders else holders.discard)(other)

    def lose_file(self) -> None:
        """Lose a file for the time of one capture, which must say so."""
        lakes = [one for one, entity in self._lakes.items() if entity == self._incarnation]
        lake = self.random.choice(lakes or [""])
        files = self._captures.lake(self._place / lake).files(MESSAGES) if lake else []
        if not files:
            return
        name = self.random.choice(files).name
        lost = self._place / lake / self._name / name
        kept = lost.read_bytes()
        lost.unlink()
        with pytest.raises(LakeFailed, match=lost.name):
            self._captures.run(self._place / lake)
        lost.write_bytes(kept)

    # Captures

    def capture(self, lake: str = "") -> None:
        """Capture into a lake; it may crash, or another writer may come."""
        lake = lake or self.random.choice("abc")
        before, fenced, new = self._rows(lake), self._fenced(lake), lake not in self._lakes
        first = self._client.log_positions(self._name).earliest[0] or 0
        sent = max(self._sent[self._incarnation], default=0)
        crash = self.random.choice(["", "", "written", "told"])
        other = self.random.choice(["", "", "", "meet", "take over"])
        given: dict[str, Any] = {"most": self.random.choice([None, 1, 3])}
        given["accept_gap"] = self.random.random() < 0.3
        others = 0

        def told(done: Captured) -> None:
            nonlocal others
            if other and not others:
                others += 1
                self._second_writer(lake, other)
            if crash == "told" and done.files:
                raise Crash

        place = self._place / lake
        try:
            self._captures.run(place, crash=crash, on_progress=told, **given)
        except ReaderTaken:
            assert self._rows(lake) == before
            self._renew(lake, before)
        except LogGap as gap:
            self._check_gone(gap)
            assert not fenced, "a copy took the readers"
            if others:
                # The writer that took over has captured the rows, so that the log may drop them.
                assert other == "take over"
                self._captured(lake, fenced)
            else:
                assert not given["accept_gap"]
                assert self._rows(lake) == before
                self._hold(lake)
        except EntityReplaced:
            assert self._lakes[lake] != self._incarnation
        except LakeBusy:
            assert others
            assert other == "take over"
            self._captured(lake, fenced)
        except Crash:
            self._captured(lake, fenced)
        else:
            self._captured(lake, fenced)
            [following] = self._captures.lake(place).manifest().tables[MESSAGES].next
            if others and other == "take over":
                sent = max(self._sent[self._incarnation], default=0)
            assert following == sent + 1
        self._check(lake)
        if new and lake in self._lakes:
            self._check_start(lake, first)

    def _second_writer(self, lake: str, how: str) -> None:
        """Come while another writer works, which holds the lake or has lost its lease."""
        self.send()
        place = self._place / lake
        if how == "take over":
            self._captures.lake(place).store.delete_folder("_lease")
        before = self._rows(lake)
        try:
            self._captures.run(place, most=self.random.choice([None, 2]))
        except LakeBusy:
            assert how == "meet", "a lake without a lease was busy"
            assert self._rows(lake) == before
        else:
            assert how == "take over", "a lake had two writers"

    def _renew(self, lake: str, before: list[tuple[int, bytes]]) -> None:
        """Make a copy a lake with its own identity."""
        try:
            self._captures.run(self._place / lake, new_identity=True)
        except LogGap:
            assert self._rows(lake) == before
        for holders in self._holders.values():
            holders.discard(lake)
        self._hold(lake)

    def _captured(self, lake: str, fenced: bool) -> None:
        assert not fenced, "a copy moved the readers"
        self._lakes.setdefault(lake, self._incarnation)
        self._hold(lake)

    def _hold(self, lake: str) -> None:
        identity = self._captures.lake(self._place / lake).identity()
        if identity is not None:
            self._holders[identity] = {lake}

    def _fenced(self, lake: str) -> bool:
        """Return whether the lake's readers were taken by a copy of it."""
        if self._lakes.get(lake) != self._incarnation:
            return False
        identity = self._captures.lake(self._place / lake).identity()
        names = {one.name for one in self._client.readers(self._name)}
        wanted = {reader_name(identity or "", table) for table in tables_of(self._name)}
        return wanted <= names and lake not in self._holders.get(identity or "", {lake})

    # What must be there

    def _check_gone(self, gap: LogGap) -> None:
        if "records no outcomes" in str(gap):
            assert not any(one.log == OUTCOMES for one in self._client.readers(self._name))
            return
        assert gap.last < (self._client.log_positions(self._name).earliest[0] or 0)

    def _rows(self, lake: str) -> list[tuple[int, bytes]]:
        if not self._captures.lake(self._place / lake).identity():
            return []
        try:
            return sorted(self._captures.rows(self._place / lake))
        except OnibusError as error:
            raise AssertionError(f"{lake}: {error}") from error

    def _check(self, lake: str) -> None:
        """The lake has each row from its start to its end once, except in its gaps."""
        if lake not in self._lakes:
            return
        progress = self._captures.lake(self._place / lake).manifest().tables.get(MESSAGES)
        if progress is None:
            assert self._rows(lake) == []
            return
        gaps = {n for gap in progress.gaps for n in range(gap.first, gap.last + 1)}
        wanted = [
            (number, body)
            for number, body in sorted(self._sent[self._lakes[lake]].items())
            if progress.start[0] <= number < progress.next[0] and number not in gaps
        ]
        assert self._rows(lake) == wanted

    def _check_start(self, lake: str, first: int) -> None:
        """The lake starts at the earliest row there was, which was `first` or a later one."""
        [start] = self._captures.lake(self._place / lake).manifest().tables[MESSAGES].start
        now = self._client.log_positions(self._name).earliest[0] or 0
        assert first <= start <= now, f"a new lake starts at {start}, not in {first} to {now}"
