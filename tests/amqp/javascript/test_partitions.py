"""Partitioned entities (P) through the SDK of JavaScript: partitions.mjs.

What a lost store does: test_lost_store.py. The SDK has no call for transactions (P8), nor for
listing sessions (P12).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.amqp.javascript.playing import Play, Player
from tests.client.server_helpers import development_string
from tests.server.processes import served


@pytest.mark.promise("P1", "P4")
def test_sixteen_of_them_and_it_cannot_be_changed(play: Play) -> None:
    play("partitions.sixteenOfThem")


@pytest.mark.promise("P1", "B7")
def test_a_full_one_refuses_keys_and_is_skipped_by_what_has_none(play: Play) -> None:
    play("partitions.aFullOneIsSkipped")


@pytest.mark.promise("P1")
def test_so_many_entities_and_no_more(
    player: Player, tls: tuple[Path, Path], tmp_path: Path
) -> None:
    config = tmp_path / "small.toml"
    config.write_text("[quotas]\nentities = 3\npartitioned_entities = 1\n")
    files = ("--tls", "--tls-certificate", tls[0], "--tls-key", tls[1])
    with served("--ephemeral", "--config", config, "--log-level", "error", *files) as server:
        player.play("partitions.soManyAndNoMore", development_string(server.port), {})


@pytest.mark.promise("P3", "P4")
def test_the_effective_key(play: Play) -> None:
    play("partitions.theEffectiveKey")


@pytest.mark.promise("P3", "P4")
def test_without_a_key_round_robin(play: Play) -> None:
    play("partitions.withoutAKeyRoundRobin")


@pytest.mark.promise("P6", "P12")
def test_a_receive_finds_what_any_partition_has(play: Play) -> None:
    play("partitions.aReceiveAsksAll")


@pytest.mark.promise("P7", "P12")
def test_peek_walks_through_all(play: Play) -> None:
    play("partitions.peekWalks")


@pytest.mark.promise("P9", "P4", "B6")
def test_forwarding_from_to_and_between_them(play: Play) -> None:
    play("partitions.forwarding")


@pytest.mark.promise("P10")
def test_counts_are_added_up_and_a_deleted_entity_takes_everything_with_it(play: Play) -> None:
    play("partitions.countsAreAddedUp")


@pytest.mark.promise("P11", "P12")
def test_rules_are_added_and_removed(play: Play) -> None:
    play("partitions.rules")


@pytest.mark.promise("P12", "L2", "S5")
def test_by_number_renewed_scheduled_and_cancelled(play: Play) -> None:
    play("partitions.everythingWorks")


@pytest.mark.promise("P12", "B4")
def test_sessions_with_their_locks_and_state(play: Play) -> None:
    play("partitions.sessions")


@pytest.mark.promise("P13", "S2")
def test_a_batch_may_mix_keys(play: Play) -> None:
    play("partitions.aBatchMayMixKeys")
