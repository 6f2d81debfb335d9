"""Duplicate detection (D) through the SDK of JavaScript: duplicates.mjs.

What transactions record, and when (D10): the SDK has none.
"""

from __future__ import annotations

import pytest

from tests.amqp.javascript.playing import Play


@pytest.mark.promise("D1", "S2")
def test_a_duplicate_is_accepted_and_dropped(play: Play) -> None:
    play("duplicates.acceptedAndDropped")


@pytest.mark.promise("D2")
def test_nothing_but_the_identity_decides(play: Play) -> None:
    play("duplicates.onlyTheIdentityDecides")


@pytest.mark.promise("D3")
def test_what_the_identity_is(play: Play) -> None:
    play("duplicates.whatTheIdentityIs")


@pytest.mark.promise("D4")
def test_the_window(play: Play) -> None:
    play("duplicates.theWindow")


@pytest.mark.promise("D5")
def test_the_memory_outlives_the_message(play: Play) -> None:
    play("duplicates.theMemoryOutlivesTheMessage")


@pytest.mark.promise("D5")
def test_a_dropped_duplicate_does_not_extend_the_window(play: Play) -> None:
    play("duplicates.aDroppedDuplicateDoesNotExtendTheWindow")


@pytest.mark.promise("D6")
def test_duplicates_are_dropped_at_the_topic(play: Play) -> None:
    play("duplicates.atTheTopic")


@pytest.mark.promise("D8")
def test_a_scheduled_message_records_its_id_when_it_is_scheduled(play: Play) -> None:
    play("duplicates.scheduled")


@pytest.mark.promise("D9", "B7")
def test_an_error_before_the_message_was_stored_records_nothing(play: Play) -> None:
    play("duplicates.refusedMessagesAreNotRecorded")


@pytest.mark.promise("D10")
def test_the_second_of_two_in_one_batch_is_a_duplicate(play: Play) -> None:
    play("duplicates.insideOneBatch")


@pytest.mark.promise("D11")
def test_messages_without_an_id(play: Play) -> None:
    play("duplicates.withoutAnId")
