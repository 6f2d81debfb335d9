"""Random sequences of captures, crashes, copies and losses: a lake is right, or says what is wrong.

The long form: ONIBUS_SEQUENCES=5000 pytest tests/spark/test_lake_sequences.py
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from onibus.api.log import ReaderInfo
from onibus.client import Client
from onibus.core.errors import EntityExists
from onibus.directory.named_reader import NamedReader
from onibus.spark.delta_log import DeltaLog
from onibus.spark.lake_capture import LakeCapture
from onibus.spark.lake_files import LakeFailed
from onibus.spark.lake_manifest import Progress
from onibus.spark.lake_writer import LakeWriter
from tests.client.server_helpers import ServerThread
from tests.spark.lake_sequence import Sequence

SEQUENCES = int(os.environ.get("ONIBUS_SEQUENCES", "300"))


@pytest.fixture
def own_server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


def run(server: ServerThread, client: Client, place: Path, seed: int) -> None:
    """Run one sequence."""
    place.mkdir()
    Sequence(client, server.connection_string, f"q{seed}", place, seed).run()
    client.delete_queue(f"q{seed}")
    shutil.rmtree(place)


@pytest.mark.promise("R9")
def test_random_sequences(own_server: ServerThread, tmp_path: Path) -> None:
    first = int(os.environ.get("ONIBUS_SEED", "1"))
    with own_server.client() as client:
        for seed in range(first, first + SEQUENCES):
            try:
                run(own_server, client, tmp_path / str(seed), seed)
            except Exception as error:
                raise AssertionError(f"ONIBUS_SEED={seed} ONIBUS_SEQUENCES=1") from error


Patch = Callable[[Any, str, Any], None]


def lakes_share_a_reader(patch: Patch) -> None:
    def take(self: LakeCapture, name: str, table: str, start: object) -> ReaderInfo:
        client, entity = self._client, self._entity
        try:
            return client.create_reader(entity, f"shared-{table}", log=table, start="earliest")
        except EntityExists:
            return client.take_reader(entity, f"shared-{table}")

    patch(LakeCapture, "_take_reader", take)


def holes_are_not_recorded(patch: Patch) -> None:
    original_prepare, original_whole = LakeCapture.prepare, LakeCapture._whole

    def prepare(self: LakeCapture, *given: Any) -> None:
        self._accept_gap = True
        original_prepare(self, *given)

    def whole(self: LakeCapture, table: str, progress: Progress, ends: Any) -> Progress:
        return replace(original_whole(self, table, progress, ends), gaps=progress.gaps)

    patch(LakeCapture, "prepare", prepare)
    patch(LakeCapture, "_whole", whole)


def copies_take_the_readers(patch: Patch) -> None:
    patch(NamedReader, "check_token", lambda self, token: None)


def leases_do_not_count(patch: Patch) -> None:
    patch(LakeWriter, "_lease_of", lambda self, token: None)


def a_former_writer_commits(patch: Patch) -> None:
    original = DeltaLog.commit

    def commit(self: DeltaLog, *given: Any, **more: Any) -> None:
        self.version = DeltaLog(self._store, self._table).version
        original(self, *given, **more)

    patch(DeltaLog, "commit", commit)
    patch(LakeWriter, "check_holder", lambda self: None)


@pytest.mark.parametrize(
    "mistake",
    [
        lakes_share_a_reader,
        holes_are_not_recorded,
        copies_take_the_readers,
        leases_do_not_count,
        a_former_writer_commits,
    ],
)
def test_the_sequences_find_each_mistake(
    mistake: Callable[[Patch], None],
    own_server: ServerThread,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mistake(monkeypatch.setattr)
    with own_server.client() as client:
        for seed in range(1, 301):
            try:
                run(own_server, client, tmp_path / str(seed), seed)
            except (AssertionError, LakeFailed):
                return
    pytest.fail("no sequence found it")
