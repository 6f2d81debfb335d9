"""A store that is lost, and found again, through the SDK of JavaScript: lost_store.mjs."""

from __future__ import annotations

from pathlib import Path

import pytest

from onibus.client import Client
from tests.amqp.javascript.on_disk import Disk, Stage
from tests.amqp.javascript.playing import Player
from tests.bus_helpers import KEYS
from tests.over_http.on_disk import stop


@pytest.mark.promise("P2", "P5", "P6", "P9", "P10", "P13", "D9")
def test_a_store_is_taken_away_and_given_back(
    tmp_path: Path, player: Player, tls: tuple[Path, Path]
) -> None:
    stage = Stage(tmp_path, player, tls)
    disk = Disk(stage.place.stores["a"])

    def lost_keys(queue: str) -> list[str]:
        with Client.connect(stage.connection) as client:
            return [KEYS[index] for index in client.queue(queue).offline_partitions]

    with stage.started():
        stage.play(
            "lost_store.takenAwayAndGivenBack",
            take_away=disk.take_away,
            give_back=disk.give_back,
            lost_keys=lost_keys,
        )


@pytest.mark.promise("P2", "P10", "B8")
def test_a_server_starts_without_a_store_and_gets_it_back(
    tmp_path: Path, player: Player, tls: tuple[Path, Path]
) -> None:
    stage = Stage(tmp_path, player, tls)
    disk = Disk(stage.place.stores["b"])
    with stage.started():
        stage.play(
            "lost_store.startedWithoutIt", stop, take_away=disk.take_away, give_back=disk.give_back
        )
