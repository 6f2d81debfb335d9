"""Messages as they go and come back through the SDK of JavaScript: messages.mjs."""

from __future__ import annotations

from tests.amqp.javascript.playing import Play


def test_every_field_comes_back_as_it_went(play: Play) -> None:
    play("messages.everyFieldComesBack")


def test_bodies_and_ids_of_all_kinds(play: Play) -> None:
    play("messages.bodiesOfAllKinds")


def test_peeked_without_bodies(play: Play) -> None:
    play("messages.peekedWithoutBodies")
