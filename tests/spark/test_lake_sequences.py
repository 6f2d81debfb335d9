"""Random sequences of captures, crashes, copies and losses: a lake is right, or says what is wrong.

The long form: ONIBUS_SEQUENCES=5000 pytest tests/spark/test_lake_sequences.py
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onibus.client import Client
from onibus.core.errors import EntityReplaced, LogGap, OnibusError, ReaderTaken
from onibus.core.message import Message
from onibus.spark.jobs.capture import Captured
from onibus.spark.lake import MESSAGES
from onibus.spark.lake_files import LakeFailed
from tests.client.server_helpers import ServerThread
from tests.spark.lake_helpers import Captures, Crash, consume

SEQUENCES = int(os.environ.get("ONIBUS_SEQUENCES", "300"))
STEPS = 9


@pytest.fixture
def own_server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


class Sequence:
    """One queue, its lakes, and what was sent."""

    def __init__(self, client: Client, connection: str, name: str, place: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self._client, self._name, self._place = client, name, place
        self._captures = Captures(connection, name)
        #: by incarnation: the body of each number
        self._sent: dict[int, dict[int, bytes]] = {}
        self._lakes: dict[str, int] = {}
        self.create()

    def create(self) -> None:
        self._client.create_queue(self._name)
        self._incarnation = self._client.log_positions(self._name).incarnation
        self._sent[self._incarnation] = {}

    def run(self) -> None:
        steps = [self.send, self.send, self.consume, self.copy, self.lose_reader, self.lose_file]
        for _ in range(STEPS):
            self.random.choice([*steps, self.capture, self.capture, self.capture, self.recreate])()
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

    def copy(self) -> None:
        """Copy a lake over another, or over what it will be: a copy, or a restored backup."""
        if self._lakes:
            one, other = self.random.choice([*self._lakes]), self.random.choice("abc")
            if one != other:
                shutil.rmtree(self._place / other, ignore_errors=True)
                shutil.copytree(self._place / one, self._place / other)
                self._lakes[other] = self._lakes[one]

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

    def capture(self, lake: str = "") -> None:
        lake = lake or self.random.choice("abc")
        before = self._rows(lake)
        place, crash = self._place / lake, self.random.choice(["", "", "written", "told"])
        given: dict[str, Any] = {
            "most": self.random.choice([None, 1, 3]),
            "accept_gap": self.random.random() < 0.3,
        }

        def told(done: Captured) -> None:
            if crash == "told" and done.files:
                raise Crash

        try:
            self._captures.run(place, crash=crash, on_progress=told, **given)
        except Crash:
            self._lakes.setdefault(lake, self._incarnation)
        except ReaderTaken:
            assert self._rows(lake) == before
            try:
                self._captures.run(place, new_identity=True)
            except LogGap:
                assert self._rows(lake) == before
        except LogGap as gap:
            self._check_gone(gap)
            assert not given["accept_gap"]
            assert self._rows(lake) == before
        except EntityReplaced:
            assert self._lakes[lake] != self._incarnation
        else:
            self._lakes.setdefault(lake, self._incarnation)
            following = self._captures.lake(place).manifest().tables[MESSAGES].next
            assert following == [max(self._sent[self._incarnation], default=0) + 1]
        self._check(lake)

    def _check_gone(self, gap: LogGap) -> None:
        assert gap.last < (self._client.log_positions(self._name).earliest[0] or 0)

    def _rows(self, lake: str) -> list[tuple[int, bytes]]:
        if lake not in self._lakes:
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


@pytest.mark.promise("R9")
def test_random_sequences(own_server: ServerThread, tmp_path: Path) -> None:
    first = int(os.environ.get("ONIBUS_SEED", "1"))
    with own_server.client() as client:
        for seed in range(first, first + SEQUENCES):
            place = tmp_path / str(seed)
            place.mkdir()
            sequence = Sequence(client, own_server.connection_string, f"q{seed}", place, seed)
            try:
                sequence.run()
            except Exception as error:
                raise AssertionError(f"ONIBUS_SEED={seed} ONIBUS_SEQUENCES=1") from error
            client.delete_queue(f"q{seed}")
            shutil.rmtree(place)
