"""Messages as they go and come back through the SDK of JavaScript: messages.mjs."""

from __future__ import annotations

from tests.amqp.javascript.playing import Play, Player
from tests.atom.helpers import connection
from tests.server.processes import Served


def test_every_field_comes_back_as_it_went(play: Play) -> None:
    play("messages.everyFieldComesBack")


def test_bodies_and_ids_of_all_kinds(play: Play) -> None:
    play("messages.bodiesOfAllKinds")


def test_peeked_without_bodies(play: Play) -> None:
    play("messages.peekedWithoutBodies")


def test_over_tls_with_the_same_connection_string(player: Player, server: Served) -> None:
    player.play("messages.everyFieldComesBack", connection(server), {})


def test_over_a_web_socket(player: Player, server: Served) -> None:
    player.play("messages.overWebSocket", connection(server), {})
